"""Results of a PyTorch program that share memory, and the effects of in-place operators on them."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Mapping
from typing import Any

from fpgapipe.network.frontends.builder import Unsupported


class Aliases:
    """Views and overwritten tensors of a program.

    Parameters
    ----------
    torch : module
        The torch library.
    graph : torch.fx.Graph
        Graph of the program.
    """

    def __init__(self, torch: Any, graph: Any) -> None:
        self._torch = torch
        self._place = {node: place for place, node in enumerate(graph.nodes)}
        self._base: dict[Any, Any] = {}  # for each node, the node whose memory it shares
        self._same: set[Any] = set()  # nodes that are all of their base: in-place results
        self.writes: dict[Any, Any] = {}
        """For each in-place operator, the node that it overwrites."""
        for node in graph.nodes:
            if node.op == "call_function":
                self._read(node)

    def _read(self, node: Any) -> None:
        if node.target is python_operator.getitem:
            if node.args[0] in self._base:
                self._base[node] = node.args[0]
            return
        schema = getattr(node.target, "_schema", None)
        for argument, given in zip(getattr(schema, "arguments", ()), node.args, strict=False):
            if argument.alias_info is None or not isinstance(given, self._torch.fx.Node):
                continue
            if argument.alias_info.is_write:
                self.writes[node] = given
                self._same.add(node)
                self._base[node] = given
            elif self._shares(node, given):
                self._base[node] = given
            return

    def _shares(self, node: Any, source: Any) -> bool:
        """Whether a result is a view; reshape and similar operators copy only if they have to."""
        torch = self._torch

        def without_memory(each: Any) -> Any:
            value = each.meta["val"]
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta"
            )

        try:
            tensors = {each: without_memory(each) for each in node.all_input_nodes}
            result = node.target(
                *torch.fx.node.map_arg(node.args, tensors.__getitem__),
                **torch.fx.node.map_arg(node.kwargs, tensors.__getitem__),
            )
        except Exception:  # an operator that cannot run without memory counts as a view
            return True
        first = result[0] if isinstance(result, list | tuple) else result
        return bool(first.untyped_storage()._cdata == tensors[source].untyped_storage()._cdata)

    def written(self, writer: Any) -> tuple[Any, list[Any]]:
        """The tensor that an in-place operator overwrites, and its views that are read afterwards.

        Returns
        -------
        tensor : Node
            The tensor that is overwritten as a whole; it may be a view.
        stale : list of Node
            Other names and views of this tensor, in the order of the program. Their earlier results
            must not be read any more.

        Raises
        ------
        Unsupported
            If the tensor is a view, and another tensor that overlaps it is read afterwards.
        """
        tensor = self.writes[writer]
        while tensor in self._same:
            tensor = self._base[tensor]
        place = self._place[writer]
        stale: set[Any] = set()
        for node in self._place:
            # Skip nodes that do not share the memory or come after the writer.
            if (
                node is writer
                or self._place[node] > place
                or self._top(node) is not self._top(tensor)
            ):
                continue
            if any(self._place[user] > place for user in node.users):
                path = self._path(node)
                if tensor in path:
                    stale.update(path[: path.index(tensor)])
                elif not self._is_apart(path, self._path(tensor)):
                    raise Unsupported(
                        "overwrites a view of another tensor; use the form that does not"
                    )
        return tensor, sorted(stale - {writer}, key=self._place.__getitem__)

    def is_same(self, node: Any) -> bool:
        """Whether a node is an in-place result, hence another name of the overwritten tensor."""
        return node in self._same

    def base(self, node: Any) -> Any:
        """The node whose memory a view or an in-place result shares."""
        return self._base[node]

    def owner(self, node: Any) -> Any:
        """The node that owns the memory of a node."""
        return self._top(node)

    def is_part(self, writer: Any) -> bool:
        """Whether an in-place operator overwrites a view of another tensor."""
        return any(each not in self._same for each in self._path(self.writes[writer])[:-1])

    def view(self, writer: Any, whole: Any, results: Mapping[Any, Any]) -> Any:
        """The view that an in-place operator overwrites, of a tensor in the place of its owner's.

        Parameters
        ----------
        writer : Node
        whole : torch.Tensor
        results : mapping of Node to Any
            Known results of other nodes.

        Raises
        ------
        Unsupported
            If it is not a view in fact, but a copy.
        """
        owner, *path = self._path(self.writes[writer])[::-1]
        values = {owner: whole}
        for each in path:
            values[each] = values[self._base[each]]
            if each not in self._same:
                values[each] = self._run(each, {**results, **values})
        found = values[self.writes[writer]]
        if found.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
            raise Unsupported("overwrites a view of another tensor; use the form that does not")
        return found

    def write(self, writer: Any, whole: Any, results: Mapping[Any, Any]) -> None:
        """Let an in-place operator overwrite its view of a tensor; see `view`."""
        view = self.view(writer, whole, results)
        with self._torch.no_grad():
            self._run(writer, {**results, self.writes[writer]: view})

    def _run(self, node: Any, values: Mapping[Any, Any]) -> Any:
        args, kwargs = (
            self._torch.fx.node.map_arg(each, values.__getitem__)
            for each in (node.args, node.kwargs)
        )
        return node.target(*args, **kwargs)

    def views(self, owner: Any, *, before: Any) -> list[Any]:
        """All names and views of an owner's memory before an operator, in their order."""
        place = self._place[before]
        return [
            node
            for node in self._place
            if node is not owner and self._place[node] < place and self._top(node) is owner
        ]

    def _path(self, node: Any) -> list[Any]:
        """A node, the node of which it is a view, and so on up to the owner of the memory."""
        path = [node]
        while path[-1] in self._base:
            path.append(self._base[path[-1]])
        return path

    def _top(self, node: Any) -> Any:
        while node in self._base:
            node = self._base[node]
        return node

    @staticmethod
    def _is_apart(one: list[Any], two: list[Any]) -> bool:
        """Whether two paths lead to different pieces of one split, which do not overlap."""
        while one and two and one[-1] is two[-1]:
            source = one[-1]
            one, two = one[:-1], two[:-1]
        if not one or not two:
            return False
        pieces = (one[-1], two[-1])
        return all(
            each.target is python_operator.getitem and each.args[0] is source for each in pieces
        )
