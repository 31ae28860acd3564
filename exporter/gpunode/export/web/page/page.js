// Shows api/v1/node and api/v1/history. STATES, each state with its words, is put before this.
// Addresses are relative, so that a proxy may serve the page from any path. Text of the node goes into the page as text only: never as markup.

const EVERY = 5000; // milliseconds between two looks at the node
const POINT = 20000; // and at its history: two points, the width of a hair
const PATIENCE = 8000; // for an answer
const SPANS = [600, 1800, 3600]; // seconds that the strips may show
const URGENCY = { now: "Act now", soon: "Time is being lost", note: "Worth knowing", fine: "" };

const $ = (id) => document.getElementById(id);
const hour = { times: [], gpus: new Map() };
const rows = new Map();
let shown = null; // the node as last seen
let seen = 0; // when, by this browser's clock

function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Text in which `backticks` mark what to type.
function written(element, text) {
  if (element.dataset.text === text) return element;
  element.dataset.text = text;
  element.replaceChildren(
    ...text.split("`").map((part, at) => (at % 2 ? make("code", "", part) : part)),
  );
  return element;
}

const headline = (state) => STATES.find(([name]) => name === state)[1];

// Numbers

const percent = (share) => `${Math.round(100 * share)} %`;

function scaled(value, unit, base = 1000) {
  const steps = ["", "k", "M", "G", "T", "P"];
  let at = 0;
  while (value >= 999.5 && at < steps.length - 1) {
    value /= base;
    at += 1;
  }
  const digits = value >= 99.5 || at === 0 ? 0 : value >= 9.95 ? 0 : 1;
  return `${value.toFixed(digits)} ${steps[at]}${unit}`;
}

function lasting(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function clock(time) {
  return new Date(1000 * time).toLocaleTimeString([], { hourCycle: "h23" });
}

function figured(value, unit) {
  if (unit === "ratio") return percent(value);
  if (unit === "bytes") return scaled(value, "B");
  if (unit === "bytes_per_second") return scaled(value, "B/s");
  if (unit === "seconds") return value < 1 ? `${(1000 * value).toFixed(0)} ms` : `${value.toFixed(1)} s`;
  return `${Math.round(value)}`;
}

// A figure behind a verdict, in words; its meaning says what it is.
function evidence(one) {
  const [, seconds, share, rest] = /^(seconds for which )?(share of time(?:: | (?=with|that)))?(.*)$/.exec(one.meaning);
  if (seconds) return `${rest} for ${lasting(one.value)} (limit ${lasting(one.threshold)})`;
  if (share) return `${rest}: ${percent(one.value)} of the time (limit ${percent(one.threshold)})`;
  if (rest.startsWith("degrees Celsius")) return rest.replace("degrees Celsius", `${Math.round(one.value)} °C`);
  const unit = rest.startsWith("share") ? "ratio" : rest.startsWith("bytes per second") ? "bytes_per_second" : rest.startsWith("seconds") ? "seconds" : "";
  const limit = one.threshold ? ` (limit ${figured(one.threshold, unit)})` : "";
  if (unit) return `${rest}: ${figured(one.value, unit)}${limit}`;
  if (one.value === one.threshold) return rest;
  return `${rest}: ${+one.value.toFixed(2)} (limit ${+one.threshold.toFixed(2)})`;
}

const named = (labels) => `GPU${labels.length > 1 ? "s" : ""} ${labels.join(", ")}`;

// What is wrong

function summary(node) {
  const groups = new Map();
  for (const gpu of node.gpus) {
    const word = gpu.does.split(/[:,]/)[0];
    groups.set(word, (groups.get(word) ?? 0) + 1);
  }
  return [...groups].map(([word, count]) => `${count} ${word}`).join(", ");
}

// An instance of MIG is a part of a GPU.
function inventory(gpus) {
  const parts = gpus.filter((gpu) => gpu.instance).length;
  const whole = gpus.length - parts;
  const counted = (count, what) => `${count} ${what}${count > 1 ? "s" : ""}`;
  return [...(whole ? [counted(whole, "GPU")] : []), ...(parts ? [counted(parts, "MIG instance")] : [])].join(" and ");
}

function showFindings(node) {
  const pressing = node.findings.some((one) => one.urgency === "now" || one.urgency === "soon");
  const all = [...node.findings];
  if (node.calm) {
    const sentence = `${inventory(node.gpus)}: ${summary(node)}.`;
    const gaps = [...(node.silent.length ? ["some sources do not answer"] : []), ...(node.unread.some((one) => !one.bound) ? ["not everything that was met is understood"] : []), ...(node.unread.some((one) => one.bound) ? ["there was more than is read"] : [])];
    const below = gaps.length ? ` But ${gaps.join(", and ")}: see below.` : "";
    all.unshift({ urgency: "fine", title: node.calm, remedy: sentence + below, evidence: [], gpus: [] });
  }
  const list = $("finding-list");
  const key = JSON.stringify(all.map((one) => [one.urgency, one.title, one.remedy]));
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(
      ...all.map((one) => {
        const item = make("li", "finding");
        item.dataset.urgency = one.urgency;
        const title = make("h3");
        if (URGENCY[one.urgency]) title.append(make("span", "urgency", URGENCY[one.urgency]));
        title.append(one.title);
        const why = make("p", "why");
        why.setAttribute("aria-live", "off"); // its figures change all the time
        item.append(title, written(make("p", "remedy"), one.remedy), why);
        return item;
      }),
    );
  }
  all.forEach((one, at) => {
    const why = list.children[at].querySelector(".why");
    const figures = one.evidence.filter((each) => each.value !== each.threshold).slice(0, 3);
    const words = [...(one.detail ? [one.detail] : []), ...figures.map(evidence)];
    const because = words.length ? `Because: ${words.join(" · ")}` : "";
    put(why, [one.gain, because].filter(Boolean).join(" "));
    why.hidden = !one.gain && !because;
  });
  const worst = all[0];
  document.title = `${pressing ? `${worst.title} · ` : ""}${node.node || "gpunode"}`;
}

// GPUs

class Row {
  constructor(gpu) {
    this.item = make("li", "gpu");
    const facts = make("div", "facts");
    const who = make("div", "who");
    this.title = make("h3");
    this.owner = make("p", "owner");
    who.append(this.title, this.owner);
    const does = make("div", "does");
    this.does = make("p");
    this.words = make("span");
    this.does.append(this.words);
    this.lasting = make("p", "lasting");
    does.append(this.does, this.lasting);
    this.strip = new Strip(gpu.uuid);
    this.power = new Meter("Power");
    this.memory = new Meter("Memory");
    this.more = make("button", "more");
    this.more.type = "button";
    this.more.setAttribute("aria-expanded", "false");
    this.more.addEventListener("click", () => this.open(this.detail.hidden));
    this.detail = make("div", "detail");
    this.detail.hidden = true;
    this.detail.id = `detail-${gpu.uuid}`;
    this.more.setAttribute("aria-controls", this.detail.id);
    facts.append(who, does, this.strip.element, this.power.element, this.memory.element, this.more);
    this.item.append(facts, this.detail);
  }

  open(wanted) {
    this.detail.hidden = !wanted;
    this.more.setAttribute("aria-expanded", String(wanted));
    if (wanted) this.showDetail();
  }

  show(gpu) {
    this.gpu = gpu;
    this.item.dataset.urgency = gpu.urgency;
    this.item.classList.toggle("awaited", gpu.waited_for_by.length > 0 && gpu.urgency !== "note");
    const ranks = gpu.ranks.length ? `rank ${gpu.ranks.join(", ")}` : "";
    const key = `${gpu.label} ${ranks}`;
    if (this.title.dataset.key !== key) {
      this.title.dataset.key = key;
      this.title.replaceChildren(`GPU ${gpu.label}`, ...(ranks ? [" ", make("small", "", ranks)] : []));
    }
    const owner = gpu.owners.join(" · ") || (gpu.pids.length ? `PID ${gpu.pids.join(", ")}` : gpu.name);
    put(this.owner, owner);
    this.owner.title = owner;
    put(this.words, gpu.does.charAt(0).toUpperCase() + gpu.does.slice(1));
    put(this.lasting, this.rest(gpu));
    this.power.show(gpu.power_watts, gpu.power_limit_watts, (watts) => `${Math.round(watts)}`, "W");
    this.memory.show(gpu.memory_used_bytes, gpu.memory_size_bytes, (bytes) => `${Math.round(bytes / 2 ** 30)}`, "GiB", 0.97);
    this.more.setAttribute("aria-label", `Why, and what to do: GPU ${gpu.label}`);
    if (!this.detail.hidden) this.showDetail();
  }

  rest(gpu) {
    const words = [];
    if (gpu.serves) words.push(gpu.serves);
    if (gpu.cause === "thermal" && gpu.temperature_celsius !== null) words.push(`${Math.round(gpu.temperature_celsius)} °C`);
    if (gpu.waited_for_by.length) words.push(`holds up ${gpu.waited_for_by.length > 2 ? `${gpu.waited_for_by.length} GPUs` : named(gpu.waited_for_by)}`);
    if (gpu.cause && gpu.cause !== "none" && gpu.share < 0.995) words.push(`${percent(gpu.share)} of its time`);
    if (gpu.lasts_seconds !== null && gpu.urgency !== "fine") {
      words.push(`for ${gpu.lasts_longer ? "more than " : ""}${lasting(gpu.lasts_seconds)}`);
    }
    return words.join(" · ");
  }

  showDetail() {
    const selection = getSelection();
    if (!selection.isCollapsed && this.detail.contains(selection.anchorNode)) return; // to copy it
    const gpu = this.gpu;
    const left = make("div");
    const block = (heading, ...content) => {
      const made = make("div", "block");
      made.append(make("h4", "", heading), ...content);
      left.append(made);
    };
    if (gpu.evidence.length) {
      const list = make("ul");
      for (const one of gpu.evidence) {
        const item = make("li", "", evidence(one));
        item.append(make("span", "series", one.series));
        list.append(item);
      }
      block("Evidence, as in Prometheus", list);
    }
    if (gpu.remedy) block("What to do", written(make("p"), gpu.remedy));
    const spent = lastHour(gpu.uuid);
    if (spent.length) {
      block("The last hour", make("p", "", spent.map(([state, share]) => `${state} ${percent(share)}`).join(" · ")));
    }
    const facts = make("dl");
    const fact = (name, value) => {
      if (value !== null && value !== "") facts.append(make("dt", "", name), make("dd", "", value));
    };
    fact("Model", gpu.name);
    fact("UUID", gpu.uuid);
    fact("Owner", gpu.owners.join(", "));
    fact("Work", gpu.workload && gpu.workload !== "unknown" ? gpu.workload : "");
    fact("Serves", gpu.serves);
    fact("PID", gpu.pids.join(", "));
    fact("Rank", gpu.ranks.join(", "));
    fact("Waits for", gpu.waits_for.length ? named(gpu.waits_for) : "");
    fact("Waited for by", gpu.waited_for_by.length ? named(gpu.waited_for_by) : "");
    fact("Temperature", gpu.temperature_celsius === null ? "" : `${Math.round(gpu.temperature_celsius)} °C`);
    fact("Utilisation", gpu.utilization_ratio === null ? "" : `${percent(gpu.utilization_ratio)}, as nvidia-smi tells it`);
    fact("Ledger", gpu.less_accurate.replaceAll("`", ""));
    fact("Step time", gpu.step_period_seconds ? `about ${gpu.step_period_seconds.toFixed(2)} s, by its power draw` : "");
    this.detail.replaceChildren(left, facts);
  }
}

class Meter {
  constructor(name) {
    this.element = make("div", "meter");
    this.name = name;
    this.text = make("p");
    this.value = make("b");
    this.of = make("span", "soft");
    this.text.append(make("span", "unseen", `${name}: `), this.value, this.of);
    this.bar = make("div", "bar");
    this.fill = make("i");
    this.bar.append(this.fill);
    this.element.append(this.text, this.bar);
  }

  show(value, of, format, unit, limit = 2) {
    const known = value !== null && value !== undefined;
    put(this.value, known ? format(value) : "–");
    put(this.of, !known ? "" : of ? ` / ${format(of)} ${unit}` : ` ${unit}`);
    const share = known && of ? Math.min(1, value / of) : 0;
    this.fill.style.width = `${100 * share}%`;
    this.bar.classList.toggle("short", share >= limit);
    this.bar.hidden = !(known && of);
  }
}

// The last hour

const SVG = "http://www.w3.org/2000/svg";

class Strip {
  constructor(uuid) {
    this.uuid = uuid;
    this.element = make("div", "strip");
    this.element.setAttribute("role", "img");
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("aria-hidden", "true");
    this.svg.setAttribute("shape-rendering", "crispEdges");
    this.element.append(this.svg);
    this.element.addEventListener("pointermove", (event) => tip(event, this.uuid));
    this.element.addEventListener("pointerleave", () => ($("tip").hidden = true));
  }

  draw(end, span, step) {
    const line = hour.gpus.get(this.uuid);
    this.svg.setAttribute("viewBox", `0 0 ${span} 1`);
    const paths = new Map();
    if (line) {
      hour.times.forEach((time, at) => {
        const right = Math.min(span, time - end + span);
        // A point a little late leaves no gap.
        const left = Math.max(0, right - Math.min(1.5 * step, at ? time - hour.times[at - 1] : step));
        if (right <= 0 || !known(line, at)) return;
        let top = 1;
        for (const [state] of STATES) {
          const share = line.states[state]?.[at] ?? 0;
          if (!share) continue;
          const path = `M${left.toFixed(1)} ${top.toFixed(3)}H${right.toFixed(1)}V${(top -= share).toFixed(3)}H${left.toFixed(1)}Z`;
          paths.set(state, (paths.get(state) ?? "") + path);
        }
      });
    }
    this.svg.replaceChildren(
      ...[...paths].map(([state, d]) => {
        const path = document.createElementNS(SVG, "path");
        path.dataset.state = state;
        path.setAttribute("d", d);
        return path;
      }),
    );
    const spent = lastHour(this.uuid);
    const words = spent.map(([state, share]) => `${headline(state)} ${percent(share)}`).join(", ");
    this.element.setAttribute("aria-label", `Where its time went, ${spanned(span)}: ${words || "nothing known yet"}`);
  }
}

function known(line, at) {
  return Object.values(line.states).some((shares) => shares[at] !== null);
}

const spanned = (seconds) => (seconds === 3600 ? "last hour" : `last ${seconds / 60} minutes`);

function span() {
  const covered = hour.times.length ? hour.times.at(-1) - hour.times[0] : 0;
  return SPANS.find((one) => covered <= one) ?? SPANS.at(-1);
}

// Shares of the time that is kept, the largest first.
function lastHour(uuid) {
  const line = hour.gpus.get(uuid);
  if (!line) return [];
  const sums = STATES.map(([state]) => [
    state,
    (line.states[state] ?? []).reduce((sum, share) => sum + (share ?? 0), 0),
  ]);
  const total = sums.reduce((sum, [, spent]) => sum + spent, 0);
  if (!total) return [];
  return sums
    .map(([state, spent]) => [state, spent / total])
    .filter(([, share]) => share >= 0.005)
    .sort((one, other) => other[1] - one[1]);
}

function tip(event, uuid) {
  const line = hour.gpus.get(uuid);
  const box = event.currentTarget.getBoundingClientRect();
  const wanted = shown.time - span() * (1 - (event.clientX - box.left) / box.width);
  const at = hour.times.findIndex((time) => time >= wanted);
  const element = $("tip");
  element.hidden = !line || at < 0 || !known(line, at) || hour.times[at] - wanted > 20;
  if (element.hidden) return;
  const states = STATES.map(([state]) => [state, line.states[state]?.[at] ?? 0]).filter(([, share]) => share >= 0.005);
  const watts = line.power_watts[at];
  element.replaceChildren(
    make("strong", "", clock(hour.times[at])),
    ...states.map(([state, share]) => {
      const row = make("p");
      const mark = make("i");
      mark.dataset.state = state;
      row.append(mark, headline(state), make("span", "", percent(share)));
      return row;
    }),
    ...(watts === null ? [] : [make("p", "soft", `${Math.round(watts)} W`)]),
  );
  const left = Math.min(event.clientX + 14, innerWidth - element.offsetWidth - 8);
  element.style.left = `${left}px`;
  element.style.top = `${Math.min(box.bottom + 6, innerHeight - element.offsetHeight - 8)}px`;
}

function showGpus(node) {
  const list = $("gpu-list");
  const wanted = new Set(node.gpus.map((gpu) => gpu.uuid));
  for (const [uuid, row] of rows) {
    if (!wanted.has(uuid)) {
      row.item.remove();
      rows.delete(uuid);
    }
  }
  node.gpus.forEach((gpu, at) => {
    if (!rows.has(gpu.uuid)) rows.set(gpu.uuid, new Row(gpu));
    const row = rows.get(gpu.uuid);
    if (list.children[at] !== row.item) list.insertBefore(row.item, list.children[at] ?? null);
    row.show(gpu);
  });
  $("gpus").hidden = !node.gpus.length;
}

function drawStrips() {
  if (!shown) return;
  const width = span();
  for (const row of rows.values()) row.strip.draw(shown.time, width, 10);
  const axis = $("axis");
  if (axis.dataset.span !== String(width)) {
    axis.dataset.span = width;
    axis.replaceChildren(make("span", "", `${width / 60} min ago`), make("span", "", "now"));
  }
  const used = new Set();
  for (const row of rows.values()) {
    for (const path of row.strip.svg.children) used.add(path.dataset.state);
  }
  const legend = $("legend");
  const key = [...used].sort().join();
  if (legend.dataset.key === key) return;
  legend.dataset.key = key;
  const item = (mark, name, meaning) => {
    const named = make("li");
    named.append(mark, name);
    named.title = meaning;
    return named;
  };
  legend.replaceChildren(
    ...STATES.filter(([state]) => used.has(state)).map(([state, words, meaning]) => {
      const mark = make("i");
      mark.dataset.state = state;
      return item(mark, words, meaning);
    }),
    item(make("i", "unrecorded"), "not recorded", "gpunode did not run, or did not read this GPU"),
  );
}

// The node

function showFigures(node) {
  for (const column of ["compute", "io", "communication"]) {
    const figures = node.figures.filter((one) => one.column === column);
    const list = $(column);
    list.replaceChildren(...(figures.length ? figures.map(figure) : [make("li", "none", "Nothing is read here.")]));
  }
  $("shortages").hidden = !node.figures.length;
}

function figure(one) {
  const item = make("li", one.short ? "figure short" : "figure");
  const name = make("p", "name", one.name);
  if (one.what) name.append(" ", make("small", "", one.what));
  const number = one.unit === "number" && one.of;
  const value = number ? `${Math.round(one.value)} of ${Math.round(one.of)}` : one.unit === "bytes" && one.of ? `${figured(one.value, "bytes")} of ${figured(one.of, "bytes")}` : figured(one.value, one.unit);
  item.append(name, make("p", "value", value));
  if (one.short) item.append(make("span", "unseen", "short"));
  if (one.of) {
    const bar = make("div", "bar");
    const fill = make("i");
    fill.style.width = `${100 * Math.min(1, one.value / one.of)}%`;
    bar.append(fill);
    if (one.limit) {
      const mark = make("u");
      mark.style.left = `${100 * Math.min(1, one.limit / one.of)}%`;
      bar.append(mark);
      bar.title = `limit ${figured(one.limit, one.unit)}`;
    }
    item.append(bar);
  }
  return item;
}

function showRest(node) {
  keyed($("audit"), node.audit, (check) => {
    const item = make("li");
    const name = make("p");
    name.append(make("strong", "", check.check.replaceAll("_", " ")), `: ${check.found}; advised: ${check.advised}`);
    const remedy = make("p");
    remedy.append(`${check.why} `, make("code", "", check.remedy));
    item.append(name, remedy);
    return item;
  }, node.audited ? `None of ${node.audited} checks failed.` : "Not audited yet.");
  keyed($("silent"), node.silent, (one) => {
    const item = make("li");
    const name = make("p");
    name.append(make("strong", "", one.source), `, ${one.where}: ${one.since === null ? "never answered" : `since ${clock(one.since)}`}`);
    item.append(name, make("p", "", one.why));
    return item;
  }, "All sources answer.");
  keyed($("unread"), node.unread, (one) => {
    const item = make("li");
    const name = make("p");
    name.append(make("strong", "", `${one.source}, ${one.what.replaceAll("_", " ")}`), `: ${one.meaning}`);
    const examples = make("p");
    one.examples.forEach((example, at) => examples.append(...(at ? [", "] : ["as "]), make("code", "", example)));
    item.append(name, examples);
    return item;
  }, "Nothing in the last hour.");
  $("rest").hidden = false;
}

const FIRST = 4; // entries of a list that are seen at once

function keyed(list, entries, item, none) {
  const key = JSON.stringify(entries);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const items = entries.map(item);
  const rest = items.splice(FIRST);
  list.replaceChildren(...(entries.length ? items : [make("li", "none", none)]));
  if (!rest.length) return;
  const more = make("li");
  const details = make("details");
  const inner = make("ul");
  inner.append(...rest);
  details.append(make("summary", "", `${rest.length} more`), inner);
  more.append(details);
  list.append(more);
}

// Of a tape: which it is, and what is worth looking at.
function showPlaying(tape) {
  $("playing").hidden = !tape;
  if (!tape) return;
  const before = tape.seconds < 0 ? `, the time before it: ${lasting(-tape.seconds)} to go` : "";
  put($("title"), `Played from a tape${tape.place ? ` ${tape.place}` : ""}: ${tape.title}${before}.`);
  put($("look"), tape.look ? `Look at this: ${tape.look}` : "");
}

function showNode(node) {
  const models = new Map();
  for (const gpu of node.gpus.filter((one) => one.name)) models.set(gpu.name, (models.get(gpu.name) ?? 0) + 1);
  put($("node"), node.node || "This node");
  put($("inventory"), [...models].map(([name, count]) => `${count} × ${name}`).join(", "));
  put($("version"), node.version);
  showPlaying(node.playing);
  showFindings(node);
  showGpus(node);
  showFigures(node);
  showRest(node);
}

// Asking, while anybody looks

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE) });
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  return answer.json();
}

function add(answer, fresh) {
  if (fresh) {
    hour.times = [];
    hour.gpus.clear();
  }
  const had = hour.times.length;
  const nothing = (count) => new Array(count).fill(null);
  hour.times.push(...answer.times);
  for (const uuid of hour.gpus.keys()) {
    if (!answer.gpus.some((gpu) => gpu.uuid === uuid)) hour.gpus.delete(uuid);
  }
  for (const gpu of answer.gpus) {
    const line = hour.gpus.get(gpu.uuid) ?? { states: {}, power_watts: nothing(had) };
    for (const state of new Set([...Object.keys(line.states), ...Object.keys(gpu.states)])) {
      // A point that is known has all states: those that are left out are 0.
      const added = gpu.states[state] ?? Object.values(gpu.states)[0]?.map((share) => (share === null ? null : 0)) ?? nothing(answer.times.length);
      const before = line.states[state] ?? Object.values(line.states)[0]?.slice(0, had).map((share) => (share === null ? null : 0)) ?? nothing(had);
      line.states[state] = [...before, ...added];
    }
    line.power_watts = [...line.power_watts, ...gpu.power_watts];
    hour.gpus.set(gpu.uuid, line);
  }
  const old = hour.times.findIndex((time) => time > hour.times.at(-1) - 3600);
  if (old > 0) {
    hour.times.splice(0, old);
    for (const line of hour.gpus.values()) {
      line.power_watts.splice(0, old);
      for (const shares of Object.values(line.states)) shares.splice(0, old);
    }
  }
}

let asking = false;
let failed = false; // the last time it was asked
let asked = -Infinity; // when the history was asked for

async function look() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const node = await ask("api/v1/node");
    const fresh = !shown || node.node !== shown.node || node.time < shown.time || node.playing?.title !== shown.playing?.title || node.version !== shown.version;
    if (fresh || performance.now() - asked >= POINT - EVERY / 2) {
      asked = performance.now();
      const since = fresh ? 0 : (hour.times.at(-1) ?? 0);
      add(await ask(since ? `api/v1/history?since=${since + 0.1}` : "api/v1/history"), fresh || !since);
    }
    shown = node;
    seen = Date.now();
    failed = false;
    showNode(node);
    drawStrips();
  } catch (error) {
    console.warn(error);
    failed = true;
    if (!seen) put($("updated"), "No answer yet, trying again…");
  } finally {
    asking = false;
    tell();
  }
}

// Says whether what is seen is of now.
function tell() {
  if (!seen) return;
  document.body.classList.toggle("gone", failed);
  const stale = $("stale");
  put($("updated"), failed ? "Not connected" : `Updated ${clock(shown.time)}`);
  if (failed) put(stale, `gpunode has not answered since ${clock(seen / 1000)}. What you see is from then. Is the daemon running, and the port still forwarded?`);
  stale.hidden = !failed;
  if (failed) document.title = `Not connected · ${shown.node || "gpunode"}`;
}

put($("updated"), "Connecting…");
setInterval(look, EVERY);
document.addEventListener("visibilitychange", look);
look();
