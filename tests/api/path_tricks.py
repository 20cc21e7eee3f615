"""Spellings of a path that mean the same to somebody else."""

from __future__ import annotations


def tricks(path: str) -> list[str]:
    first, _, rest = path.removeprefix("/").partition("/")
    return [
        path,
        f"/{path}",
        f"//{first}//{rest}",
        f"/./{first}/{rest}",
        f"/docs/..{path}",
        f"/healthz/../{first}/{rest}",
        f"/%2e/{first}/{rest}",
        f"/docs/%2e%2e{path}",
        f"/docs%2f..{path}",
        f"{path};x",
        f"{path};/healthz",
        f"/healthz;{path}",
        f"{path}%00",
        f"{path}%3f/healthz",
        f"{path}?/healthz",
        f"{path}#/healthz",
        f"{path}/",
        f"{path}%2f",
        path.upper(),
        path.title(),
        path.replace("/v1", "/%761"),
        path.replace("/", "%2f"),
        f"http://127.0.0.1{path}",
        f"http://elsewhere.example{path}",
        f"http://elsewhere.example/healthz/..{path}",
        f"/stores/x{path}",
        f"/.door{path}",
    ]
