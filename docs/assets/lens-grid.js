// What each layer would say: the logit lens as a table, on several texts.
//
// gptbook.widgets.lens_grid publishes <lens-grid data-file="...">, and inside of it the table of the first text, which
// stands where no script runs. The file holds the likeliest tokens of each layer at each place, and ranks of answers.

import { choice, element, Fed, share } from "./controls.js";

class LensGrid extends Fed {
  begin({ about, tensors }) {
    Object.assign(this, about);
    this.tensors = tensors;
    this.text = choice("text", this.texts.map((tokens) => tokens.join("").replaceAll("␣", " ").trim()));
    this.answer = choice("answer", []);
    this.table = this.querySelector("table");
    this.status = element("p", { className: "about" });
    this.status.setAttribute("role", "status");
    this.prepend(this.text.row, this.answer.row);
    this.table.before(this.status);
    this.text.input.addEventListener("change", () => this.choose());
    this.answer.input.addEventListener("change", () => this.show());
    // One cell is in the order of the tab key; arrows go from cell to cell.
    this.table.setAttribute("role", "grid");
    this.table.addEventListener("focusin", ({ target }) => this.tell(target));
    this.table.addEventListener("pointerover", ({ target }) => this.tell(target));
    this.table.addEventListener("keydown", (event) => this.move(event));
    this.choose();
  }

  part(name) {
    return this.tensors[`${name}.${this.text.input.value}`];
  }

  choose() {
    const names = this.answers[this.text.input.value];
    this.answer.input.replaceChildren(...names.map((name, value) => element("option", { value }, name)));
    this.answer.row.hidden = names.length < 2;
    this.show();
  }

  show() {
    const text = this.text.input.value;
    const answer = Number(this.answer.input.value);
    const tokens = this.texts[text];
    const [rows, columns, top] = this.part("said").shape;
    const [said, chances, ranks, answered] = ["said", "chances", "ranks", "answered"].map((name) => this.part(name).data);
    const among = this.answers[text].length;
    const head = (words, className = "") => element("th", { scope: "col", className }, words);
    const first = element("tr", {}, head("layer"), head(`rank of ${this.answers[text][answer]}`, "num"), head("its chance", "num"));
    first.append(...tokens.map((token) => head(token)));
    const body = Array.from({ length: rows }, (_, layer) => {
      const rank = ranks[layer * among + answer].toLocaleString("en");
      const chance = share(answered[layer * among + answer]);
      const row = element("tr", {}, element("th", { scope: "row" }, String(layer)));
      row.append(element("td", { className: "num" }, rank), element("td", { className: "num" }, chance));
      for (let t = 0; t < columns; t++) {
        const at = (layer * columns + t) * top;
        const likeliest = Array.from({ length: top }, (_, i) => `${this.symbols[said[at + i]]} ${share(chances[at + i])}`);
        const words = `Layer ${layer}, after ${tokens[t]}: ${likeliest.join(", ")}.`;
        const cell = element("td", { className: "says", tabIndex: -1, words }, this.symbols[said[at]]);
        cell.style.setProperty("--p", chances[at]);
        row.append(cell);
      }
      return row;
    });
    this.table.style.setProperty("--n", columns);
    this.table.tHead.replaceChildren(first);
    this.table.tBodies[0].replaceChildren(...body);
    const last = body.at(-1).lastChild;
    last.tabIndex = 0;
    this.tell(last);
  }

  tell(cell) {
    if (cell?.words) this.status.textContent = cell.words;
  }

  move(event) {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
    const cell = event.target.closest(".says");
    if (down === undefined || !cell) return;
    event.preventDefault();
    const next = this.table.tBodies[0].rows[cell.parentNode.sectionRowIndex + down]?.cells[cell.cellIndex + right];
    if (!next?.words) return;
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

customElements.define("lens-grid", LensGrid);
