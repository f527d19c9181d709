// The checklist of the home page: turns the list inside each <div class="checklist"> into check boxes.
//
// What is ticked stays in this browser. Where its storage is closed or full, ticks last until the page is loaded anew.
// An item is <li id="..." data-exercise="...">: its id is kept, and the code of that exercise ticks it.

const KEY = "gptbook.checklist";
const unkept = new Map(); // id -> ticked or not: changes that the browser did not keep so far
let trouble = ""; // why: "closed" or "full"

function read() {
  const text = localStorage.getItem(KEY); // throws where the storage is closed
  try {
    const kept = JSON.parse(text);
    return new Set(Array.isArray(kept) ? kept : []);
  } catch {
    return new Set(); // somebody else's text
  }
}

function changed(ids) {
  for (const [id, on] of unkept) on ? ids.add(id) : ids.delete(id);
  return ids;
}

function ticked() {
  try {
    const ids = changed(read());
    if (!unkept.size) trouble = "";
    return ids;
  } catch {
    trouble = "closed";
    return changed(new Set());
  }
}

function keep(ids, on) {
  for (const id of ids) unkept.set(id, on);
  try {
    // Read anew: what could not be read a moment ago, or what another window ticked, is not to be written over.
    localStorage.setItem(KEY, JSON.stringify([...changed(read())]));
    unkept.clear();
    trouble = "";
  } catch (error) {
    trouble = error.name === "QuotaExceededError" ? "full" : "closed";
  }
}

// The build publishes marks in place of codes. gptbook/exercises/codes.py computes the same.
const plain = (text) => text.normalize("NFKC").toLowerCase().replace(/[^a-z0-9]/g, "");
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

// What was typed may have words behind the code, and a code may have blanks in it: the most words that are one.
function find(known, words) {
  for (let end = words.length; end > 0; end--) {
    const typed = mark(words.slice(0, end).join(""));
    const found = known.find(([, expected]) => typed === expected);
    if (found) return found[0];
  }
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
      keep([item.id], box.checked);
      say("");
      show();
    });
    return box;
  });

  let number = ""; // of a second list in the page
  while (document.getElementById(`checklist-code${number}`)) number = Number(number) + 1;
  const count = element("p", { className: "checklist-count" });
  const field = element("input", { id: `checklist-code${number}`, type: "text", autocomplete: "off", spellcheck: false });
  field.setAttribute("autocapitalize", "none");
  field.setAttribute("aria-describedby", `checklist-message${number}`);
  const message = element("p", { id: `checklist-message${number}`, className: "checklist-message" });
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
    where.textContent = {
      "": "Your ticks are kept in this browser only. ",
      closed: "Your browser keeps nothing for this site: the ticks last until the page is loaded anew. ",
      full: "Your browser has no room left for this site: the last changes last until the page is loaded anew. ",
    }[trouble];
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const pasted = field.value.normalize("NFKC").replace(/^.*code:/is, ""); // a pasted line of a verdict
    const typed = plain(pasted);
    if (!typed) return say("Type or paste the code that a passed check prints: a name and four signs.", false);
    let known;
    try {
      known = await marks();
    } catch {
      return say("The site's list of codes could not be loaded. Are you offline? You can tick the box by hand.", false);
    }
    const right = find(known, pasted.trim().split(/\s+/));
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
    keep([item.id], true);
    show();
    say(`Right: you solved “${right}”. Ticked: ${item.querySelector("label").textContent.trim()}`);
  });

  clear.addEventListener("click", () => {
    keep(items.map((item) => item.id), false);
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
