// Shows the token to the server, which answers with a cookie that scripts cannot read.

const form = document.querySelector("form"), problem = document.querySelector(".problem");

async function show(token) {
  const answer = await fetch("/login", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }),
  }).catch(() => null);
  if (!answer) problem.textContent = "The server does not answer.";
  else if (answer.ok) location.replace(target());
  else problem.textContent = "This is not the token of this server.";
}

/** The list of jobs, or the job whose page led here. */
function target() {
  const job = new URLSearchParams(location.search).get("job");
  return job ? `/job?${new URLSearchParams({ job })}` : "/";
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  show(document.getElementById("token").value);
});

/** Log in with the token of the address, also one that is pasted while this page is open. */
function useAddress() {
  const given = location.hash.slice(1);
  if (!given) return;
  history.replaceState(null, "", `/login${location.search}`);  // it stays out of the browser's history
  show(given);
}

window.addEventListener("hashchange", useAddress);
useAddress();
