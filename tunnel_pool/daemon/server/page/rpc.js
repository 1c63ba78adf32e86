// Transmission's RPC, as JSON-RPC 2.0: it has what the API of the page's events has not.

const PATH = "transmission/rpc";
const SESSION = "X-Transmission-Session-Id";
let session = "";

/** Returns the result of a method; throws an error with the daemon's words. */
export async function rpc(method, params = {}) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const post = () => fetch(PATH, { method: "POST", headers: { [SESSION]: session }, body });
  let response = await post();
  if (response.status === 409) {
    session = response.headers.get(SESSION);
    response = await post();
  }
  if (!response.ok) throw new Error((await response.text()).trim());
  const answer = await response.json();
  if (answer.error) throw new Error(answer.error.data?.error_string ?? answer.error.message);
  return answer.result;
}
