// Shows the token to the server, which answers with a cookie that scripts cannot read.

const form = document.querySelector("form"), problem = document.querySelector(".problem");

async function show(token) {
  const answer = await fetch("/login", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }),
  });
  if (answer.ok) location.replace("/");
  else problem.textContent = "This is not the token of this server.";
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  show(document.getElementById("token").value);
});
const given = location.hash.slice(1);
if (given) {
  history.replaceState(null, "", "/login");  // it stays out of the browser's history
  show(given);
}
