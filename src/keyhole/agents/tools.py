"""Which tools are there, what does each take, and how is a call answered?"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, get_type_hints

from torch.nn.modules.module import register_module_forward_pre_hook

from keyhole.agents import circuits, prompts, studies
from keyhole.agents.bodies import Answer, ToolBody
from keyhole.agents.offered import Offered
from keyhole.errors import KeyholeError
from keyhole.requests.bodies import read_body, schema_of
from keyhole.requests.jobs import Reporter


@dataclass(frozen=True)
class Tool:
    """One tool: what answers, and whether it takes less than a few seconds on small models."""

    answer: Callable[[Offered, Any, Reporter], Answer]
    quick: bool = True
    writes: bool = False  # files in the folder, where the request says so

    @property
    def name(self) -> str:
        """The function's."""
        return self.answer.__name__

    @property
    def description(self) -> str:
        """What it is for: the function's docstring, a paragraph a line."""
        paragraphs = cleandoc(self.answer.__doc__ or "").split("\n\n")
        return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    @property
    def body(self) -> type[ToolBody]:
        """What a call of it has."""
        body: type[ToolBody] = get_type_hints(self.answer)["body"]
        return body

    def schema(self, offered: Offered) -> dict[str, Any]:
        """The arguments as JSON Schema; of models, the names that are offered."""
        schema = schema_of(self.body)
        model = schema["properties"]["model"]
        if not offered.settings.any_model:
            model["enum"] = list(offered.sources)
        if "default" in model:
            model["default"] = offered.given.first
        return schema

    def call(self, offered: Offered, arguments: dict[str, Any], reporter: Reporter) -> bytes:
        """The answer of one call, no longer than the server allows.

        A fault of ours is a sentence for the agent and a traceback for whoever started the server.
        """
        try:
            body = read_body(self.body, self._with_model(offered, arguments))
            with stoppable(reporter):
                answer = self.answer(offered, body, reporter)
            return offered.folder.without(offered.bounded(self.name, answer, body.form)).encode("utf-8", "replace")
        except KeyholeError as error:
            raise KeyholeError(offered.folder.without(str(error))) from None
        except MemoryError:
            raise
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            raise KeyholeError(
                f"this went wrong inside Keyhole ({type(error).__name__}): the server's standard error has the "
                "traceback. Please report it."
            ) from None

    def _with_model(self, offered: Offered, arguments: dict[str, Any]) -> dict[str, Any]:
        """A call that names no model means the first; a circuit names its own."""
        usual = self.body.model_fields["model"].default is not None
        return (
            arguments
            if arguments.get("model") is not None or not usual
            else {**arguments, "model": offered.given.first}
        )


_AT_WORK: list[Reporter] = []  # of work that is under way; the last is that of quick work that was let in


@contextmanager
def stoppable(reporter: Reporter) -> Iterator[None]:
    """Work that stops inside a model's pass, too: between two reports there may be a batch of long prompts."""
    worker = threading.get_ident()

    def look(*_: Any) -> None:
        if threading.get_ident() == worker and _AT_WORK[-1] is reporter:
            reporter.check(alone=True)

    hook = register_module_forward_pre_hook(look)
    _AT_WORK.append(reporter)
    try:
        yield
    finally:
        _AT_WORK.pop()
        hook.remove()


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(prompts.check),
        Tool(prompts.heads),
        Tool(prompts.channels),
        Tool(prompts.explain),
        Tool(prompts.explain_mlp),
        Tool(circuits.trace, quick=False, writes=True),
        Tool(circuits.sufficient, quick=False, writes=True),
        Tool(circuits.verify, quick=False),
        Tool(circuits.compare, quick=False),
        Tool(prompts.generate, quick=False),
        Tool(studies.contrast, quick=False),
        Tool(studies.claim, quick=False),
    )
}
