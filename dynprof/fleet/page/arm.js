// The form that requests a window. Its fields come from the config's JSON Schema.

import { element, load, part, say, send } from "./common.js";

const form = document.querySelector("#arm form"), all = form.querySelector("fieldset"), told = form.querySelector("[role=status]"), answer = part("answer");
let fields = [], name = "", isAsking = false;

export async function offerForm(job) {
  name = job;
  part("arm").hidden = false;
  document.querySelector("nav a[href='#arm']").hidden = false;
  form.addEventListener("submit", (event) => { event.preventDefault(); ask("arm", { settings: shown() }); });
  part("cancel").addEventListener("click", () => ask("cancel", {}));
  await drawForm();
}

async function drawForm() {
  const found = await load("/api/form", { job: name });
  say(form.querySelector(".problem"), found.problem);
  fields = found.fields;
  form.querySelector(".fields").replaceChildren(...fields.slice(0, found.first).map(drawField));
  const panels = Map.groupBy ? Map.groupBy(fields.slice(found.first), (field) => field.panel || "More") : new Map([["More", fields.slice(found.first)]]);
  const made = [...panels].flatMap(([title, those]) => [element("h3", "", title), wrapped(those)]);
  form.querySelector(".more").replaceChildren(...made);
}

/** Shows the values that the config has now, except where a person has typed another one. */
export async function updateForm() {
  if (isAsking || !fields.length) return;
  const found = await load("/api/form", { job: name });
  if (isAsking) return;
  say(form.querySelector(".problem"), found.problem);
  const now = new Map(found.fields.map((field) => [field.key, field.value]));
  for (const field of fields) {
    const isTyped = isChanged(field);
    field.value = now.get(field.key);
    if (!isTyped) setValue(field);
    markChanged(field);
  }
}

function wrapped(those) {
  return element("div", "fields", ...those.map(drawField));
}

function drawField(field) {
  const label = element("label", field.kind === "bool" ? "field check" : "field"), input = makeInput(field);
  field.input = input;
  input.name = field.key;
  const title = element("span", "key-name", field.key), help = element("small", "", field.description);
  help.id = `help-${field.key}`;
  input.setAttribute("aria-describedby", help.id);
  label.append(...(field.kind === "bool" ? [input, title, help] : [title, input, help]));
  input.addEventListener("input", () => markChanged(field));
  return label;
}

function makeInput(field) {
  if (field.choices.length) {
    const input = element("select");
    input.append(...field.choices.map((one) => new Option(one, one)));
    input.value = field.value;
    return input;
  }
  const input = element("input");
  if (field.kind === "bool") {
    input.type = "checkbox";
    input.checked = field.value === true;
    return input;
  }
  input.type = field.kind === "int" || field.kind === "float" ? "number" : "text";
  if (input.type === "number") {
    input.step = field.kind === "int" ? 1 : "any";
    const least = field.minimum ?? field.exclusiveMinimum;
    if (least !== undefined) input.min = least;
    if (field.maximum !== undefined) input.max = field.maximum;
  }
  input.value = field.value ?? "";
  input.placeholder = { every: "30m", ranks: "all", dict: "key=value" }[field.key] ?? (field.kind === "dict" ? "key=value" : field.default ?? "");
  input.autocomplete = "off";
  return input;
}

const isChanged = ({ kind, input, value }) =>
  kind === "bool" ? input.checked !== (value === true) : input.value !== String(value ?? "");

const markChanged = (field) => field.input.closest(".field").classList.toggle("changed", isChanged(field));

function setValue({ kind, input, value }) {
  if (kind === "bool") input.checked = value === true;
  else input.value = value ?? "";
}

/** All that the form shows: the server passes on what the config does not have. */
const shown = () => Object.fromEntries(fields.map(({ key, kind, input }) => [key, kind === "bool" ? input.checked : input.value]));

async function ask(command, content) {
  const focused = document.activeElement;
  isAsking = all.disabled = true;  // nothing is typed that the end would wipe
  say(told, command === "arm" ? "Saving the request …" : "Cancelling …");
  try {
    const found = await send(`/api/${command}`, { job: name, ...content });
    const code = found.exit_code === null ? "The time was up." : `Exit code ${found.exit_code}.`;
    const lines = [`$ ${found.command}`, ...found.output.split("\n"), ...found.messages.split("\n"), code].filter(Boolean);
    answer.replaceChildren(...lines.map((line) => element("span", "", line)));
    answer.className = found.exit_code === 0 ? "" : "bad";
    say(told, found.exit_code === 0 ? "Done. Requests, above, show what becomes of it." : `dynprof ${command} did not succeed.`);
    if (found.exit_code === 0 && command === "arm") await drawForm();
  } catch (error) {
    answer.replaceChildren(element("span", "", error.message));
    answer.className = "bad";
    say(told, "");
  }
  answer.hidden = false;
  isAsking = all.disabled = false;
  if (document.activeElement === document.body && focused?.isConnected) focused.focus({ preventScroll: true });
}
