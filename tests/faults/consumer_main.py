from typing import Any
def main(case: dict[str, Any]) -> None:
    raise NotImplementedError
