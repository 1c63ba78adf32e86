"""A client of the daemon's RPC with few imports, because programs that send one request start often."""

import aiohttp


class Rpc:
    """A client that speaks JSON-RPC 2.0, as Transmission 4.1 has it."""

    def __init__(self, address):
        self._url = f"http://{address}/transmission/rpc"
        self._headers = {}
        self._http = None

    async def __aenter__(self):
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *error):
        await self._http.close()

    @property
    def where(self):
        """Return the URL, and the headers with the session id that the daemon gave us."""
        return self._url, self._headers

    async def post(self, body):
        """Post any JSON value; return the HTTP status, and the answer if the status is 200."""
        while True:
            async with self._http.post(self._url, json=body, headers=self._headers) as response:
                if response.status != 409:
                    return response.status, await response.json() if response.status == 200 else None
                self._headers["X-Transmission-Session-Id"] = response.headers["X-Transmission-Session-Id"]

    async def call(self, method, params=None):
        """Call a method and return its result; fail if the answer has none."""
        status, answer = await self.post({"jsonrpc": "2.0", "method": method, "params": params or {}, "id": 1})
        assert status == 200
        assert "result" in answer, answer
        return answer["result"]
