from collections.abc import Iterable

class Summary:
    class Value:
        def __init__(self, *, tag: str = ..., simple_value: float = ...) -> None: ...

    def __init__(self, *, value: Iterable[Value] = ...) -> None: ...
