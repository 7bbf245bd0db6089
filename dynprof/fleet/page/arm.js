// The form that requests a window. Its fields come from the config's JSON Schema.

import { element, load, part, say, send } from "./common.js";

const form = document.querySelector("#arm form"), told = form.querySelector("[role=status]"), answer = part("answer");
let fields = [], csrf = "", name = "";

export async function offerForm(job, ownCsrf) {
  [name, csrf] = [job, ownCsrf];
  part("arm").hidden = false;
  document.querySelector("nav a[href='#arm']").hidden = false;
  form.addEventListener("submit", (event) => { event.preventDefault(); ask("arm", { settings: changed() }); });
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
  input.addEventListener("input", () => label.classList.toggle("changed", isChanged(field)));
  return label;
}

function makeInput(field) {
  if (field.choices.length) {
    const input = element("select");
    input.append(...field.choices.map((one) => new Option(one, one, one === field.value, one === field.value)));
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

const changed = () => Object.fromEntries(fields.filter(isChanged).map(({ key, kind, input }) => [key, kind === "bool" ? input.checked : input.value]));

async function ask(command, content) {
  const buttons = [...form.querySelectorAll("button")];
  buttons.forEach((one) => { one.disabled = true; });
  say(told, command === "arm" ? "Saving the request …" : "Cancelling …");
  try {
    const found = await send(`/api/${command}`, { job: name, ...content }, csrf);
    const code = found.exit_code === null ? "The time was up." : `Exit code ${found.exit_code}.`;
    const lines = [`$ ${found.command}`, ...found.output.split("\n"), ...found.messages.split("\n"), code].filter(Boolean);
    answer.replaceChildren(...lines.map((line) => element("span", "", line)));
    answer.className = found.exit_code === 0 ? "" : "bad";
    say(told, found.exit_code === 0 ? "Done. Requests, above, show what becomes of it." : `dynprof ${command} did not succeed.`);
    if (found.exit_code === 0) await drawForm();
  } catch (error) {
    answer.replaceChildren(element("span", "", error.message));
    answer.className = "bad";
    say(told, "");
  }
  answer.hidden = false;
  buttons.forEach((one) => { one.disabled = false; });
}
