// Where a head looks, its layer and number to choose.
//
// gptbook.widgets.attention_view publishes <attention-view data-file="...">, and inside of it the map of one head, which
// stands where no script runs. The file holds the weights of every head on every text as bytes, rows up to the diagonal.

import { button, choice, element, Fed, fresh, slider, token } from "./controls.js";

const whole = (p) => (p >= 0.005 ? `${Math.round(100 * p)} %` : p > 0 ? "< 1 %" : "0 %");

const ABOUT = "Each row is a token. The stronger the shade of a cell, the more the token looks at that of the column.";

class AttentionView extends Fed {
  begin({ about, tensors }) {
    this.texts = about.texts;
    this.weights = about.texts.map((_, i) => tensors[`weights.${i}`]);
    const [L, H] = this.weights[0].shape;
    this.text = choice("text", this.texts.map((tokens) => tokens.join("").replaceAll("␣", " ").trim()));
    this.layer = slider("layer", 0, L - 1, 1, about.start[0]);
    this.head = slider("head", 0, H - 1, 1, about.start[1]);
    this.known = about.known.map(([name, layer, head]) => {
      const press = button(`${name}: ${layer}.${head}`, () => {
        this.layer.input.value = layer;
        this.head.input.value = head;
        this.show();
      });
      return { press, layer, head };
    });
    const heads = element("div", { className: "presses" }, ...this.known.map(({ press }) => press));
    heads.setAttribute("role", "group");
    heads.setAttribute("aria-label", "heads found by their scores");
    this.line = element("fieldset", { className: "line" });
    this.status = element("p", { className: "about" });
    this.status.setAttribute("role", "status");
    this.map = this.querySelector(".map");
    this.querySelector(".about").textContent = ABOUT;
    this.prepend(this.text.row, this.layer.row, this.head.row, ...(this.known.length ? [heads] : []), this.line, this.status);
    for (const { input } of [this.layer, this.head]) input.addEventListener("input", () => this.show());
    this.text.input.addEventListener("change", () => this.lay());
    this.map.addEventListener("pointerover", ({ target }) => this.point(target.t));
    this.map.addEventListener("pointerleave", () => this.point(undefined));
    this.map.addEventListener("click", ({ target }) => target.t !== undefined && this.choose(target.t));
    this.lay(about.token);
  }

  // A row (t) of the weights of the head that is chosen.
  row(t) {
    const { data, shape } = this.weights[this.text.input.value];
    const [, H, size] = shape;
    const begin = (Number(this.layer.input.value) * H + Number(this.head.input.value)) * size + (t * (t + 1)) / 2;
    return Array.from(data.subarray(begin, begin + t + 1), (byte) => byte / 255);
  }

  // Another text: its tokens in a line, and as rows and columns of the map. One of them is chosen, else the last.
  lay(chosen) {
    this.tokens = this.texts[this.text.input.value];
    const name = fresh("token");
    const legend = element("legend", {}, "Choose a token, to see where it looks");
    this.line.replaceChildren(
      legend,
      ...this.tokens.map((text, t) => {
        const input = element("input", { type: "radio", name, value: t, className: "unseen" });
        input.addEventListener("change", () => this.choose(t));
        const label = element("label", {}, input, ...token(text), element("small", { ariaHidden: "true" }));
        label.addEventListener("pointerover", () => this.point(t));
        label.addEventListener("pointerleave", () => this.point(undefined));
        return label;
      }),
    );
    this.places = [...this.line.querySelectorAll("label")];
    this.names = [];
    this.cells = [];
    const columns = this.tokens.map((text) => element("span", { className: "column" }, text));
    const grid = [element("span"), ...columns];
    this.tokens.forEach((text, t) => {
      this.names.push(element("span", { className: "row", t }, text));
      this.cells.push(Array.from({ length: t + 1 }, () => element("i", { t })));
      grid.push(this.names[t], ...this.cells[t]);
    });
    this.map.style.setProperty("--n", this.tokens.length);
    this.map.replaceChildren(...grid);
    this.pointed = undefined;
    this.choose(chosen ?? this.tokens.length - 1);
  }

  choose(t) {
    this.chosen = t;
    this.places[t].querySelector("input").checked = true;
    this.show();
  }

  point(t) {
    if (t === this.pointed) return;
    this.pointed = t;
    this.mark();
  }

  show() {
    const [layer, head] = [this.layer, this.head].map(({ input }) => Number(input.value));
    const [L, H] = this.weights[0].shape;
    this.layer.tell(`${layer} (0–${L - 1})`);
    this.head.tell(`${head} (0–${H - 1})`);
    for (const known of this.known)
      known.press.setAttribute("aria-pressed", known.layer === layer && known.head === head);
    this.cells.forEach((cells, t) => {
      const row = this.row(t);
      cells.forEach((cell, s) => cell.style.setProperty("--p", row[s]));
    });
    this.map.setAttribute("aria-label", `Layer ${layer}, head ${head}. ${ABOUT}`);
    const row = this.row(this.chosen);
    const best = row.map((p, s) => [p, s]).sort(([a], [b]) => b - a).slice(0, 4).filter(([p]) => p >= 0.005);
    const looks = best.map(([p, s]) => `${this.tokens[s]} ${s === this.chosen ? "(itself) " : ""}${whole(p)}`).join(", ");
    this.status.textContent = `Layer ${layer}, head ${head}: ${this.tokens[this.chosen]} looks at ${looks}.`;
    this.mark();
  }

  // The token that is pointed at, else the one that is chosen: its row in the map, and its weights in the line.
  mark() {
    const now = this.pointed ?? this.chosen;
    const row = this.row(now);
    this.places.forEach((label, s) => {
      const p = row[s] ?? 0;
      label.style.setProperty("--p", p);
      label.classList.toggle("now", s === now);
      label.classList.toggle("later", s > now);
      label.querySelector("small").textContent = p >= 0.005 ? whole(p) : "";
    });
    this.names.forEach((name, t) => name.classList.toggle("now", t === now));
    this.cells.forEach((cells, t) => cells.forEach((cell) => cell.classList.toggle("now", t === now)));
  }
}

customElements.define("attention-view", AttentionView);
