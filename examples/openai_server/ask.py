"""Asks for a completion under a version, with OpenAI's own client.

    python ask.py "2 + 3 = 5\n4 + 4 =" --url http://127.0.0.1:8001/v1 --min-version 3

While the server has no such version yet it answers 409 with Retry-After, upon which OpenAI's client waits and asks
again by itself. Prints the text, and under which versions it was made.
"""

from __future__ import annotations

import argparse
import json

import openai


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--url", default="http://127.0.0.1:8001/v1")
    parser.add_argument("--min-version", type=int, help="this version or a later one")
    parser.add_argument("--exact-version", type=int, help="this version from the first token to the last")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--retries", type=int, default=100)
    args = parser.parse_args()
    wanted = {"P2PSync-Min-Version": args.min_version, "P2PSync-Exact-Version": args.exact_version}
    client = openai.OpenAI(base_url=args.url, api_key="none", max_retries=args.retries)
    model = client.models.list().data[0].id
    try:
        answer = client.completions.with_raw_response.create(
            model=model,
            prompt=args.prompt,
            max_tokens=args.tokens,
            temperature=0.0,
            extra_headers={name: str(version) for name, version in wanted.items() if version is not None},
        )
    except openai.ConflictError as error:
        raise SystemExit(f"409: {error.response.text}") from None
    said = answer.headers
    print(
        json.dumps(
            {
                "text": answer.parse().choices[0].text,
                "start_version": int(said["P2PSync-Start-Version"]),
                "end_version": int(said["P2PSync-End-Version"]),
                "commits": int(said["P2PSync-Commits"]),
            }
        )
    )


if __name__ == "__main__":
    main()
