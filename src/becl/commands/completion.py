"""`becl completion`: what makes a shell complete the words of becl.

A script has all names in it, since completing a word must not wait for Python. It is written from the options of the
commands, like their help.
"""

import textwrap
from collections.abc import Sequence

from becl import envs
from becl.commands.cli import HELP
from becl.commands.help import SHARED, field_texts
from becl.envs import maze
from becl.objectives import METHODS
from becl.objectives.registry import FINETUNE_SKILLS
from becl.options import OPTIONS, CompletionOptions
from becl.options.fields import CommandOption, options_of
from becl.sweeps.file import presets

FOLDERS = ("FOLDER", "RUN")
FILES = ("FILE", "PLUGIN", "SWEEP")
"""Names of values that are files; sweeps have names of their own besides."""


def run(options: CompletionOptions) -> int:
    print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell]())
    return 0


def names() -> dict[str, Sequence[str]]:
    """The words that there are for a value of each name."""
    return {
        "METHOD": [*METHODS],
        "ENV": [*envs.DOMAINS, *envs.names(), *maze.names()],
        "MAZE": maze.names(),
        "TASK": ["all", *envs.names()],
        "CHOICE": [word for word in FINETUNE_SKILLS if ":" not in word],  # The others need a number.
        "SWEEP": [*presets(), "status", "collect"],
    }


# --- bash and zsh -----------------------------------------------------------------------------------------------------

# A command's table has an entry for each option, NAME:COUNT:WHAT. The name of an argument is empty. COUNT is 0 for a
# switch, 1, or + for any number of values; WHAT is the name of the value, or its choices with commas between them.
SHARED_PART = r"""
    # The option that may take the word, and whether it or an argument has a word already.
    for word in "$@"; do
        case $word in
            "" | =) ;;  # Of --option=value bash makes three words.
            --*=*) option=${word%%=*} given=1 ;;
            --*) option=$word given=0 ;;
            *)
                [[ -z $option ]] && placed=1
                given=1 ;;
        esac
    done
    case $command in
TABLES
    esac
    for entry in $TABLE; do
        name=${entry%%:*} entry=${entry#*:}
        [[ -n $name ]] && flags+=" $name" || place=$entry
        [[ -n $name && $name == "$option" ]] && found=$entry
    done
    case "${found%%:*}$given" in
        00 | 11) found= ;;
        01) found= placed=1 ;;
    esac
    if [[ -z $found && "${place%%:*}$placed" != 11 ]]; then found=$place; fi
    what=${found#*:}
    [[ $cur == -* || -z $found ]] && what=FLAGS
    case $what in
        FLAGS) values=$flags ;;
NAMES
        FOLDERS | FILES) ;;
        *) values=${what//,/ } ;;
    esac"""

BASH = r"""# Completes the words of becl in bash; written by `becl completion bash`.
_becl() {
    local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} option= given=0 placed=0
    local table= flags= place= found= entry= name= what= values= word=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "COMMANDS" -- "$cur"))
        return
    fi
    [[ $cur == = ]] && cur=
    set -- "${COMP_WORDS[@]:2:COMP_CWORD-2}"
SHARED
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
    local IFS=$'\n'
    case $what in
        FOLDERS) COMPREPLY=($(compgen -d -- "$cur")) ;;
        FILES) COMPREPLY+=($(compgen -f -- "$cur")) ;;
        *) return ;;
    esac
    compopt -o filenames 2>/dev/null
}
complete -F _becl becl"""

ZSH = r"""#compdef becl
# Completes the words of becl in zsh; written by `becl completion zsh`.
_becl() {
    local cur=$words[CURRENT] command=$words[2] option= given=0 placed=0
    local table= flags= place= found= entry= name= what= values= word=
    if ((CURRENT == 2)); then
        compadd -- COMMANDS
        return
    fi
    set -- "${(@)words[3,CURRENT-1]}"
    if [[ $cur == --*=* ]]; then
        set -- "$@" "${cur%%=*}"
        cur=${cur#*=}
        compset -P '*='
    fi
SHARED
    [[ -n $values ]] && compadd -- ${=values}
    case $what in
        FOLDERS) _files -/ ;;
        FILES) _files ;;
    esac
}
if [[ $funcstack[1] == _becl ]]; then _becl "$@"; else compdef _becl becl; fi"""


def bash() -> str:
    return filled(BASH.replace("SHARED", SHARED_PART.strip("\n")).replace("$TABLE", "$table"))


def zsh() -> str:
    return filled(ZSH.replace("SHARED", SHARED_PART.strip("\n")).replace("$TABLE", "${=table}"))


def filled(script: str) -> str:
    """A script with the tables of the commands and the names of things in it."""
    tables = [f'{command}) table="{table(command)}" ;;' for command in OPTIONS]
    known = [f'{name}) values="{" ".join(words)}" ;;' for name, words in names().items()]
    for place, lines in {"TABLES": tables, "NAMES": known}.items():
        script = script.replace(place, textwrap.indent("\n".join(lines), " " * 8))
    for place, some in {"FOLDERS": FOLDERS, "FILES": FILES}.items():
        script = script.replace(place, " | ".join(some))
    return script.replace("COMMANDS", " ".join(HELP))


def table(command: str) -> str:
    """What a shell has to know about a command's options."""
    entries = []
    for option in options_of(OPTIONS[command]).values():
        count = "0" if option.switch else "+" if option.several else "1"
        entries.append(f"{'' if option.positional else option.word}:{count}:{what(option)}")
        if option.switch and option.default:
            entries.append(f"--no-{option.word[2:]}:0:")
    return " ".join([*entries, "--plugin:1:PLUGIN", "--help:0:"])


def what(option: CommandOption) -> str:
    """What the value of an option is, as far as it can be completed."""
    known = option.value.name in (*FOLDERS, *FILES, *names())
    return ",".join(option.choices) or (option.value.name if known else "")


# --- fish -------------------------------------------------------------------------------------------------------------


def fish() -> str:
    lines = ["# Completes the words of becl in fish; written by `becl completion fish`.", "complete -c becl -f"]
    lines += [f"complete -c becl -n __fish_use_subcommand -a {name} -d {quoted(text)}" for name, text in HELP.items()]
    for command, kind in OPTIONS.items():
        texts = field_texts(kind)
        here = f"complete -c becl -n '__fish_seen_subcommand_from {command}'"
        lines += [f"{here} {fish_words(option, texts[option.name])}" for option in options_of(kind).values()]
    return "\n".join([*lines, f"complete -c becl -l plugin -r -F -d {quoted(SHARED['--plugin PLUGIN'])}"])


def fish_words(option: CommandOption, text: str) -> str:
    """An option or argument in the words of fish's `complete`."""
    known = option.choices or names().get(option.value.name, ())
    offer = [f"-a {quoted(' '.join(known))}"] if known else []
    offer += ["-a '(__fish_complete_directories)'"] if option.value.name in FOLDERS else []
    offer += ["-F"] if option.value.name in FILES else []
    if option.positional:
        return " ".join(offer)
    name = f"no-{option.word[2:]}" if option.switch and option.default else option.word[2:]
    takes = [] if option.switch else ["-r" if "-F" in offer else "-x"]
    return " ".join([f"-l {name}", *takes, *offer, f"-d {quoted(text.partition('. ')[0])}"])


def quoted(text: str) -> str:
    """A word of fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
