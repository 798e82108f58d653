"""How does an agent talk to Keyhole? By the Model Context Protocol over stdio: tools, and circuit files as resources.

The event loop answers at once; one thread does the work, in turn (`requests/jobs.py`). Standard output belongs to the
protocol, and the SDK sends whatever else is printed to standard error.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import anyio

from keyhole.agents.files import Folder
from keyhole.errors import KeyholeError
from keyhole.requests.bodies import spell
from keyhole.requests.jobs import ENDS, Jobs, Limits
from keyhole.settings.agents import AgentSettings
from keyhole.strict import quoted
from keyhole.version import __version__

try:
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.shared.exceptions import MCPError
except ImportError as missing:
    raise KeyholeError("a server for agents needs one more package: pip install 'keyhole[mcp]'.") from missing

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from keyhole.agents.offered import Offered
    from keyhole.agents.tools import Tool

CIRCUITS = "keyhole://circuits/"  # what a circuit's address begins with
_DOCUMENT = 200_000  # characters of a circuit's document; of a longer one, only its tree is given
_EVERY = 0.2  # seconds between two reports of one part of the work
_NEVER = 86_400.0  # seconds
_SHORT = 0.99  # a part that is done counts as less than the beginning of the next: reports must grow
_ABOUT = """Keyhole explains attention heads: why a head attends where it does, and which circuit is behind an answer.

Begin with heads or trace on a prompt; explain one firing; test what was found with verify, claim, sufficient and \
generate (edits). Heads are named by layer and head, such as 3.6; tokens by position or text.
Models: {models}. Files are those in the server's folder, named by their place in it. Long work reports its progress \
and can be cancelled."""


def serve(folder: Path | str, models: Mapping[str, str], settings: AgentSettings | None = None) -> None:
    """Serve agents over standard input and output until the client is gone.

    Args:
        folder: The folder whose files may be read and written.
        models: The models that are offered: a source as `keyhole.load` takes it, by the name that agents use.
        settings: How far answers and their reach go.
    """
    agents = Agents(Folder.of(folder), dict(models), settings or AgentSettings())
    # A thread of the SDK waits for a line of standard input, and Python would wait for that thread.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    anyio.run(agents.run)


@dataclass
class Agents:
    """One server: what it offers, and the work that waits. It lives inside a running event loop."""

    folder: Folder
    models: dict[str, str]
    settings: AgentSettings
    _loading: "asyncio.Task[Offering] | None" = field(default=None, init=False)
    _jobs: Jobs | None = field(default=None, init=False)

    async def run(self) -> None:
        """Answer until the client closes standard input."""
        # A call is listened to until it ends, or is cancelled: nothing else stops its work.
        self._jobs, server = Jobs(Limits(grace=_NEVER), spell), self.server()
        # What Python prints goes to standard error at once: the SDK sends there what is written past it, and would let
        # lines that wait in a buffer out into the protocol at its end.
        async with stdio_server() as (incoming, outgoing), redirected():
            # Not before, as it may print something. In a thread: the first message is answered while torch is loaded.
            self._loading = asyncio.create_task(asyncio.to_thread(Offering, self.folder, self.models, self.settings))
            await server.run(incoming, outgoing, server.create_initialization_options())
            self._jobs.close()

    def server(self) -> "Server[Any]":
        """The protocol's side of it."""
        return Server(
            "keyhole",
            version=__version__,
            title="Keyhole",
            instructions=_ABOUT.format(models=", ".join(self.models)),
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_read_resource=self.read_resource,
        )

    async def offering(self) -> "Offering":
        """Models, files and tools, once the library is loaded."""
        assert self._loading is not None
        return await asyncio.shield(self._loading)  # who cancels a call does not cancel the loading

    async def list_tools(
        self, context: "ServerRequestContext[Any, Any]", params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """All tools, each with the JSON Schema of its arguments."""
        offering = await self.offering()
        return types.ListToolsResult(tools=[_described(tool, offering.offered) for tool in offering.tools.values()])

    async def call_tool(
        self, context: "ServerRequestContext[Any, Any]", params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Answer one call. Where the client cancels it, the work stops where it next reports."""
        assert self._jobs is not None
        offering, arguments = await self.offering(), params.arguments or {}
        tool = offering.tools.get(params.name)
        if tool is None:
            known = ", ".join(offering.tools)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {quoted(params.name)}: there is {known}.")
        try:
            job = self._jobs.add(
                tool.name, lambda reporter: tool.call(offering.offered, arguments, reporter), quick=tool.quick
            )
        except KeyholeError as error:  # too many wait
            return _error(str(error))
        queue, steps = self._jobs.listen(job), Steps()
        try:
            while True:
                name, data = await queue.get()
                if name == "progress" and (step := steps.step(json.loads(data))) is not None:
                    await context.session.report_progress(*step)
                if name in ENDS:
                    break
        finally:
            self._jobs.leave(job, queue)
            self._jobs.cancel(job)  # of no effect, if it has ended
        if name == "result":
            return types.CallToolResult(content=[types.TextContent(text=data.decode())])
        return _error(json.loads(data)["error"] if name == "error" else "this was stopped before it was done.")

    async def list_resources(
        self, context: "ServerRequestContext[Any, Any]", params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Circuit files in the folder."""
        paths = await asyncio.to_thread(self.folder.circuits)
        return types.ListResourcesResult(resources=[self._resource(path) for path in paths])

    def _resource(self, path: Path) -> types.Resource:
        name = self.folder.name_of(path)
        size = path.stat().st_size if path.exists() else None
        return types.Resource(uri=CIRCUITS + quote(name), name=name, mime_type="application/json", size=size)

    async def read_resource(
        self, context: "ServerRequestContext[Any, Any]", params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """A circuit as a tree, and its document."""
        uri, offering = str(params.uri), await self.offering()
        try:
            if not uri.startswith(CIRCUITS):
                raise KeyholeError(f"{quoted(uri)} is no circuit: their addresses begin with {CIRCUITS}.")
            tree, document = await asyncio.to_thread(offering.circuit, unquote(uri.removeprefix(CIRCUITS)))
        except KeyholeError as error:
            raise MCPError(types.INVALID_PARAMS, self.folder.without(str(error))) from None
        contents = [types.TextResourceContents(uri=uri, mime_type="text/plain", text=tree)]
        if len(document) <= _DOCUMENT:
            contents.append(types.TextResourceContents(uri=uri, mime_type="application/json", text=document))
        return types.ReadResourceResult(contents=list(contents))


@asynccontextmanager
async def redirected() -> AsyncIterator[None]:
    """Print to standard error."""
    with redirect_stdout(sys.stderr):
        yield


class Offering:
    """Models, files and tools, whose modules load torch: it is made in a thread."""

    def __init__(self, folder: Folder, models: dict[str, str], settings: AgentSettings) -> None:
        offered, tools = import_module("keyhole.agents.offered"), import_module("keyhole.agents.tools")
        self.offered: Offered = offered.Offered(folder, models, settings)
        self.tools: dict[str, Tool] = tools.TOOLS
        self._tree = import_module("keyhole.agents.circuits").tree
        self._json = import_module("keyhole.circuits.files").to_json

    def circuit(self, name: str) -> tuple[str, str]:
        """A circuit of a file as a tree, and its document."""
        circuit = self.offered.circuit(name)
        return self._tree(circuit), self._json(circuit)


class Steps:
    """Reports of progress as the protocol wants them: numbers that only grow, over all parts of the work.

    >>> steps = Steps(every=0.0)
    >>> steps.step({"what": "Loading", "done": 1, "total": 2, "left": None})
    (0.495, 1, 'Loading: 1 of 2')
    >>> steps.step({"what": "Tracing", "done": 0, "total": 0, "left": None})
    (1.0, 2, 'Tracing')
    """

    def __init__(self, every: float = _EVERY) -> None:
        self._every, self._part, self._parts, self._last, self._sent = every, "", 0, -1.0, 0.0

    def step(self, report: Mapping[str, Any]) -> tuple[float, float, str] | None:
        """What is reported: how far, of how much, and in words; None where nothing grew, or it was just reported."""
        part, done, total, left = (report[name] for name in ("what", "done", "total", "left"))
        begins = part != self._part
        if begins:
            self._parts, self._part = self._parts + 1, part
        value = self._parts - 1 + (_SHORT * min(done, total) / total if total else 0.0)
        now = time.monotonic()
        if value <= self._last or (not begins and now - self._sent < self._every):
            return None
        self._last, self._sent = value, now
        words = f"{part}: {done} of {total}" if total else part
        return value, self._parts, f"{words}, {left} left" if left else words


def _described(tool: "Tool", offered: "Offered") -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=not tool.writes, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    return types.Tool(
        name=tool.name, description=tool.description, input_schema=tool.schema(offered), annotations=hints
    )


def _error(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=sentence)], is_error=True)
