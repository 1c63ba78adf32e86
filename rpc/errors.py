"""Errors of the streams. Everything raised by this package is an RpcError. Pure."""

from tunnel_pool.rpc import control_pb2 as pb


class RpcError(Exception):
    """The base of every error that this package raises on purpose."""


class BrokenStreamError(RpcError):
    """Says that the other side sent bytes that cannot be a frame; the stream is unusable from here on."""


class CallError(RpcError):
    """Says that a call did not succeed."""


class CallTimeoutError(CallError):
    """Says that no answer came in time; the call may still take effect."""


class ConnectionLostError(CallError):
    """Says that the other side is gone; raised once for each pending call and for each new one."""


class TooManyCallsError(CallError):
    """Says that the other side does not keep up: the call was refused here, and nothing was sent."""


class RemoteError(CallError):
    """Says that the other side refused. `code` is one of ErrorCode in control.proto."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __str__(self) -> str:
        names: dict[int, str] = {number: name for name, number in pb.ErrorCode.items()}
        return f"{names.get(self.code, f'error {self.code}')}: {super().__str__()}"
