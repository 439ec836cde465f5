"""`becl encoder-weights`: the file of frozen weights that images are looked at with, of weights that people have."""

from becl.errors import UserError
from becl.experiments.encoder_weights import convert, original_file, read_weights, save_weights
from becl.options import EncoderWeightsOptions
from becl.options.training import ENCODER_WEIGHTS


def run(options: EncoderWeightsOptions) -> int:
    path = original_file(options.file)
    weights = convert(path)
    if options.out.exists() and not options.force:
        raise UserError(f"{options.out} exists; --force overwrites it, or choose another --out")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_weights(weights, options.out, path.name)
    kept = read_weights(options.out)
    count, size = sum(array.size for array in kept.arrays.values()), options.out.stat().st_size / 1e6
    print(f"{kept.network}, {count:,} numbers of {path.name} → {options.out} ({size:.1f} MB)")
    named = "" if options.out == ENCODER_WEIGHTS else f" --encoder-weights {options.out}"
    print(f"next: becl pretrain walker --pixels --encoder pieg{named}")
    return 0
