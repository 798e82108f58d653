"""Which models may an agent name, which files, and how long is an answer? What a server for agents was started with."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from keyhole.agents.bodies import CIRCUITS, Answer
from keyhole.agents.files import Folder
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.files import load_circuit
from keyhole.errors import KeyholeError, UnwritableError
from keyhole.files import write_at_once
from keyhole.models.organism import NAME as ORGANISM
from keyhole.models.organism import source_named
from keyhole.requests.bodies import spell
from keyhole.requests.kept import Given, Kept
from keyhole.settings.agents import AgentSettings
from keyhole.strict import quoted

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.requests.jobs import Reporter

_FORMS = {"text": ".txt", "json": ".json"}


class Offered(Kept):
    """Models and files that agents may use, and everything that calls share."""

    def __init__(self, folder: Folder, models: Mapping[str, str], settings: AgentSettings) -> None:
        super().__init__(Given(models=tuple(models), tokens=settings.tokens))
        self.folder, self.sources, self.settings = folder, dict(models), settings

    def source(self, name: str) -> str | None:
        """Where a model is loaded from: a name that was given at the start, or any, where that was allowed then."""
        if name in self.sources:
            return source_named(self.sources[name])
        if self.settings.any_model:
            return source_named(name)
        raise KeyholeError(
            f"this server offers no model {quoted(name)}: it offers {', '.join(self.sources)}. Others are for whoever "
            "starts it: --model NAME=PATH, or --any-model."
        )

    def circuit(self, name: str) -> Circuit:
        """A circuit of a file in the folder."""
        return load_circuit(self.folder.existing(name, CIRCUITS))

    def model_of(self, circuit: Circuit, name: str | None, reporter: "Reporter") -> "Model":
        """The model that made a circuit. Its file names one, which is loaded only if this server offers it."""
        if name is None:
            named = str(circuit.model.get("name", ORGANISM))
            same = [known for known, source in self.sources.items() if named in (known, source)]
            name = same[0] if same else next(iter(self.sources)) if len(self.sources) == 1 else None
            if name is None:
                raise KeyholeError(
                    f"this circuit was made with {quoted(named)}, and this server offers {', '.join(self.sources)}: "
                    "say with model which of them that is."
                )
        return self.model(name, reporter)

    def bounded(self, tool: str, answer: Answer, form: str) -> str:
        """An answer as it is sent. One that is too long is written to a file, and begins with that file's name."""
        text, most = answer.text if form == "text" else spell(answer.record).decode(), self.settings.limit
        wrote = [f"wrote {name}" for name in answer.written]
        if len(text) <= most:
            return "\n".join([text, *wrote]) if form == "text" else text
        name = f"keyhole-{tool}-{hashlib.sha256(text.encode()).hexdigest()[:12]}{_FORMS[form]}"
        try:
            self.folder.save(name, (_FORMS[form],), lambda path: write_at_once(path, text))
            where = f"the whole answer is in {name}"
        except UnwritableError as error:
            where = f"the whole answer could not be kept: {error}"
        shown = answer.text[:most]
        cut = "" if len(answer.text) <= most else "\n..."
        head = f"This answer has {len(text):,} characters, and at most {most:,} are sent: {where}. In short:"
        return "\n".join([head, "", shown + cut, *wrote])
