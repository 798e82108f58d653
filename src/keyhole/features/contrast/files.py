"""How is a contrast written down? JSON Lines: one sample a line, read strictly.

    {"contrast": "plurals", "bos": null}                                          an optional first line
    {"prompt": "...", "query": "last", "positive": [{"find": "cats"}], "negative": [{"find": "dog"}]}
    {"prompts": ["...", "..."], "query": -1, "positive": [5], "negative": [{"token": 5, "prompt": 1}]}

A place is a token position, "last", {"token": n}, {"span": [start, end]} in characters, {"find": text, "nth": 0} or
{"regex": pattern, "nth": 0}; "nth": "all" means every occurrence, and "prompt" which of the line's prompts (default 0).
Optional: "label", "group", "weight", "negative_query". Equal prompts of different lines are run once.
"""

import json
from pathlib import Path
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.features.contrast.sites import Contrast, Place, Sample, Site
from keyhole.files import write_at_once
from keyhole.strict import is_index, is_list, is_number, is_whole, parse_json, quoted, read_text, require

_KEYS = {"prompt", "prompts", "query", "positive", "negative", "negative_query", "label", "group", "weight"}
_PLACES = {"token", "span", "find", "regex"}


def read_contrast(path: str | Path) -> Contrast:
    """Read a contrast, or say which line is wrong and why."""
    path = Path(path)
    name, bos, headed = path.stem, None, False
    prompts: dict[Any, int] = {}
    samples: list[Sample] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            require(isinstance(record, dict), "a line is one JSON object.")
            if "contrast" in record:
                name, bos = _header(record, first=not (samples or headed))
                headed = True
            else:
                samples.append(_sample(record, prompts))
        except KeyholeError as error:
            raise KeyholeError(f"{path}, line {number}: {error}") from error
    if not samples:
        raise KeyholeError(f"{path} has no samples: write one JSON object a line, see `keyhole contrast --help`.")
    return Contrast(name, tuple(prompts), tuple(samples), bos)


def write_contrast(contrast: Contrast, path: str | Path) -> None:
    """Write a contrast so that `read_contrast` gives it back."""
    lines = [json.dumps({"contrast": contrast.name, "bos": contrast.bos})]
    for sample in contrast.samples:
        used = list(dict.fromkeys(site.prompt for site in sample.sites))
        prompts = [_plain(contrast.prompts[i]) for i in used]
        record: dict[str, Any] = {"prompt": prompts[0]} if len(prompts) == 1 else {"prompts": prompts}
        record["query"] = _written(sample.query, used)
        record["positive"] = [_written(site, used) for site in sample.positive]
        record["negative"] = [_written(site, used) for site in sample.negative]
        if sample.negative_query is not None:
            record["negative_query"] = _written(sample.negative_query, used)
        optional = {"label": sample.label, "group": sample.group}
        record |= {key: value for key, value in optional.items() if value is not None}
        if sample.weight != 1.0:
            record["weight"] = sample.weight
        lines.append(json.dumps(record, ensure_ascii=False))
    write_at_once(path, "\n".join(lines) + "\n")


def _header(record: dict[str, Any], *, first: bool) -> tuple[str, bool | None]:
    require(first, 'the line with "contrast" must come first.')
    if set(record) - {"contrast", "bos"} or not isinstance(record["contrast"], str):
        raise KeyholeError('the first line has "contrast", a name, and "bos" (true, false or null), nothing else.')
    bos = record.get("bos")
    require(isinstance(bos, bool | None), f'"bos" is true, false or null, not {quoted(bos)}.')
    return record["contrast"], bos


def _sample(record: dict[str, Any], prompts: dict[Any, int]) -> Sample:
    if unknown := set(record) - _KEYS:
        raise KeyholeError(f"unknown keys: {', '.join(sorted(unknown))}; known are {', '.join(sorted(_KEYS))}.")
    require(("prompt" in record) != ("prompts" in record), 'give "prompt" or "prompts", and not both.')
    texts = [record["prompt"]] if "prompt" in record else record["prompts"]
    require(isinstance(texts, list) and bool(texts), '"prompts" is a list of at least one prompt.')
    numbers = [prompts.setdefault(_prompt(prompt), len(prompts)) for prompt in texts]
    for key in ("query", "positive", "negative"):
        require(key in record, f'there is no "{key}".')
    for key in ("label", "group"):
        require(isinstance(record.get(key, ""), str), f'"{key}" is text, not {quoted(record.get(key))}.')
    weight = record.get("weight", 1.0)
    require(is_number(weight), f'"weight" is a number, not {quoted(weight)}.')
    other = record.get("negative_query")
    return Sample(
        query=_site(record["query"], numbers),
        positive=_sites(record["positive"], numbers, "positive"),
        negative=_sites(record["negative"], numbers, "negative"),
        negative_query=None if other is None else _site(other, numbers),
        label=record.get("label"),
        group=record.get("group"),
        weight=float(weight),
    )


def _prompt(prompt: Any) -> Any:
    text = isinstance(prompt, str)
    require(text or is_list(prompt, int), f"a prompt is text or a list of token ids, not {quoted(prompt)}.")
    return prompt if text else tuple(prompt)


def _sites(places: Any, numbers: list[int], side: str) -> tuple[Site, ...]:
    require(isinstance(places, list), f'"{side}" is a list of places.')
    return tuple(_site(place, numbers) for place in places)


def _site(place: Any, numbers: list[int]) -> Site:
    if place == "last":
        place = -1
    if is_whole(place):
        place = {"token": place}
    kinds = set(place) & _PLACES if isinstance(place, dict) else set()
    if len(kinds) != 1 or set(place) - kinds - {"nth", "prompt"}:
        raise KeyholeError(f'{quoted(place)} is no place: a position, "last", or one of token, span, find, regex.')
    prompt = place.get("prompt", 0)
    reason = f"there is no prompt {quoted(prompt)}: the line has {len(numbers)}, numbered from 0."
    require(is_index(prompt, len(numbers)), reason)
    return Site(_place(place, kinds.pop()), numbers[prompt])


def _place(place: dict[str, Any], kind: str) -> Place:
    value, nth = place[kind], place.get("nth", 0)
    if kind == "token" and is_whole(value) and "nth" not in place:
        return Place(token=value)
    if kind == "span" and "nth" not in place and is_list(value, int) and len(value) == 2:
        return Place(span=(value[0], value[1]))
    if kind in ("find", "regex") and isinstance(value, str) and (nth == "all" or is_whole(nth)):
        nth = None if nth == "all" else nth
        return Place(text=value, nth=nth) if kind == "find" else Place(pattern=value, nth=nth)
    raise KeyholeError(f"{quoted(place)} is no place.")


def _plain(prompt: Any) -> Any:
    return prompt if isinstance(prompt, str) else [int(i) for i in prompt]


def _written(site: Site, used: list[int]) -> Any:
    place = site.place
    record: dict[str, Any] = {}
    if place.token is not None:
        record["token"] = place.token
    elif place.span is not None:
        record["span"] = list(place.span)
    else:
        record["find" if place.text is not None else "regex"] = place.text if place.text is not None else place.pattern
        if place.nth != 0:
            record["nth"] = "all" if place.nth is None else place.nth
    if used.index(site.prompt):
        record["prompt"] = used.index(site.prompt)
    return record["token"] if set(record) == {"token"} else record
