// The checklist of the home page: turns the list inside each <div class="checklist"> into check boxes.
//
// What is ticked stays in this browser. Where its storage is closed, ticks last until the page is loaded anew.
// An item is <li id="..." data-exercise="...">: its id is kept, and the code of that exercise ticks it.

const KEY = "gptbook.checklist";
let unkept = null; // the ticked ids while the browser keeps nothing

function ticked() {
  if (unkept) return new Set(unkept);
  try {
    const kept = JSON.parse(localStorage.getItem(KEY));
    return new Set(Array.isArray(kept) ? kept : []);
  } catch (error) {
    if (!(error instanceof SyntaxError)) unkept = [];
    return new Set();
  }
}

function keep(ids) {
  try {
    localStorage.setItem(KEY, JSON.stringify([...ids]));
    unkept = null;
  } catch {
    unkept = [...ids];
  }
}

// The build publishes marks in place of codes. gptbook/exercises/codes.py computes the same.
const plain = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "");
function mark(text) {
  let value = 0x811c9dc5;
  for (const sign of plain(text)) value = Math.imul(value ^ sign.charCodeAt(0), 0x01000193);
  return (value >>> 0).toString(16).padStart(8, "0");
}

async function marks() {
  const answer = await fetch(new URL("codes.json", import.meta.url));
  if (!answer.ok) throw new Error(answer.statusText);
  return Object.entries(await answer.json()).sort(([a], [b]) => b.length - a.length); // the longest name first
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function build(list) {
  list.dataset.ready = "";
  list.querySelector("ul").setAttribute("role", "list"); // some readers' software drops a list without bullets
  const items = [...list.querySelectorAll("li[id]")];
  const boxes = items.map((item) => {
    const box = element("input", { type: "checkbox", id: `${item.id}-box` });
    // The words become the label; a link stays outside, so that following it ticks nothing.
    const words = [...item.childNodes].filter((node) => node.nodeName !== "A");
    const links = [...item.childNodes].filter((node) => node.nodeName === "A");
    const label = element("label", { htmlFor: box.id }, ...words);
    const from = item.dataset.exercise
      ? element("span", { className: "checklist-exercise" }, "Exercise: ", element("code", {}, item.dataset.exercise))
      : "";
    item.replaceChildren(box, element("div", {}, label, " ", ...links, " ", from));
    box.addEventListener("change", () => {
      const ids = ticked();
      box.checked ? ids.add(item.id) : ids.delete(item.id);
      keep(ids);
      say("");
      show();
    });
    return box;
  });

  const count = element("p", { className: "checklist-count" });
  const field = element("input", { id: "checklist-code", type: "text", autocomplete: "off", spellcheck: false });
  field.setAttribute("autocapitalize", "none");
  field.setAttribute("aria-describedby", "checklist-message");
  const message = element("p", { id: "checklist-message", className: "checklist-message" });
  message.setAttribute("role", "status");
  const form = element(
    "form",
    { noValidate: true },
    element("label", { htmlFor: field.id }, "The code of a passed check"),
    element("div", { className: "checklist-row" }, field, element("button", {}, "Tick")),
  );
  const where = element("span");
  const clear = element("button", { type: "button" }, "Clear all");
  list.append(count, form, message, element("p", { className: "checklist-kept" }, where, clear));

  function say(text, right = true) {
    message.textContent = text;
    message.classList.toggle("wrong", !right);
    field.setAttribute("aria-invalid", String(!right));
  }

  function show() {
    const ids = ticked();
    items.forEach((item, i) => (boxes[i].checked = ids.has(item.id)));
    const done = boxes.filter((box) => box.checked).length;
    count.textContent = `${done} of ${boxes.length} done`;
    where.textContent = unkept
      ? "Your browser keeps nothing for this site: the ticks last until the page is loaded anew. "
      : "Your ticks are kept in this browser only. ";
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const typed = plain(field.value.replace(/^.*code:/is, "")); // a pasted line of a verdict has its code at the end
    if (!typed) return say("Type or paste the code that a passed check prints: a name and four signs.", false);
    let known;
    try {
      known = await marks();
    } catch {
      return say("The site's list of codes could not be loaded. Are you offline? You can tick the box by hand.", false);
    }
    const right = known.find(([, expected]) => mark(typed) === expected)?.[0];
    if (!right) {
      const near = known.find(([name]) => typed.startsWith(plain(name)))?.[0];
      return say(
        near
          ? `“${near}” is an exercise, but this is not its code. The check prints the code when your answer passes.`
          : "No exercise has this code. A code is the name of an exercise and four signs, as a passed check prints it.",
        false,
      );
    }
    field.value = "";
    const item = items.find((item) => item.dataset.exercise === right);
    if (!item) return say(`Right: you solved “${right}”. No item of the list waits for it.`);
    keep(ticked().add(item.id));
    show();
    say(`Right: you solved “${right}”. Ticked: ${item.querySelector("label").textContent.trim()}`);
  });

  clear.addEventListener("click", () => {
    keep([]);
    show();
    say("All ticks are cleared.");
  });

  list.show = show;
  show();
}

function start() {
  for (const list of document.querySelectorAll(".checklist:not([data-ready])")) build(list);
}

// Another window of this browser has ticked something.
addEventListener("storage", (event) => {
  if (event.key === KEY || event.key === null)
    for (const list of document.querySelectorAll(".checklist[data-ready]")) list.show();
});

// The theme swaps pages without loading the document anew, and says so here.
if (window.document$) window.document$.subscribe(start);
else start();
