"""What a browser sends with the requests of a page, wherever the page is from. {port} stands for the broker's."""

from __future__ import annotations

# What every browser says, and what else it says of a page that it takes for one of ours, or of none: over plain http a
# look has neither `Origin` nor `Sec-Fetch-*` in it.
CHROME = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0", "Accept": "*/*", "Accept-Language": "en"}
LOOKS: dict[str, dict[str, str]] = {
    "a script's look": CHROME,
    "a script's look, with where it is from": {**CHROME, "Referer": "http://{host}:{port}/page"},
    "somebody goes there": {**CHROME, "Upgrade-Insecure-Requests": "1"},
    "a script that calls itself otherwise": {"User-Agent": "curl/8", "Accept-Language": ""},
    "a browser that says nothing of languages": {"User-Agent": "mozilla/5.0"},
    "over TLS": {**CHROME, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
    "hints alone": {"Sec-CH-UA-Platform": '"Linux"'},
    "modes alone": {"Sec-Fetch-Mode": "navigate"},
    "a change": {"Origin": "http://{host}:{port}"},
}
# A page of somebody else's, in a browser that says so.
OTHER_SITES = [
    {"Origin": "http://elsewhere.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost:{port}"},
    {"Origin": "http://127.0.0.1:{port}.elsewhere.example"},
    {"Origin": "http://127.0.0.1:{port}@elsewhere.example"},
    {"Origin": "http://[bad"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "Cross-Site"},
]


def from_page(headers: dict[str, str], port: int, host: str = "127.0.0.1") -> dict[str, str]:
    """Of a page that was loaded from a broker's port, by the name `host`."""
    filled = {"Host": "{host}:{port}", **headers}
    return {name: value.replace("{port}", str(port)).replace("{host}", host) for name, value in filled.items()}
