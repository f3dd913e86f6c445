"""What a stand-in offers under the name of a missing function or class: it can be named, not used."""


def absent(package: str) -> type:
    class Absent:
        def __init__(self, *_args, **_kwargs):
            raise RuntimeError(f"{package} is not installed in the Carnator test bed")

    return Absent
