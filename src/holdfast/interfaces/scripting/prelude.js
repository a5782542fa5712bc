// What a script in JavaScript has: `store`, `holdfast`, `console`, `print`. Returns the functions that the worker calls.
(function () {
  "use strict";
  const { __send } = globalThis;
  delete globalThis.__send;
  // A text that was put together of others is flattened first: the engine cannot hand it over otherwise.
  const send = (kind, id, text) => __send(kind, id, [text].join(""));
  const { parse, stringify } = JSON;
  const { isArray } = Array;
  const { isSafeInteger, isInteger, isFinite } = Number;
  const { defineProperty, freeze, getPrototypeOf, keys, setPrototypeOf } = Object;
  const evaluate = globalThis.eval; // in the global scope, by another name
  const Bytes = Uint8Array;
  const MARK = "$script", MAX_DEPTH = 100;
  const FLOATS = Symbol("floats"), KIND = Symbol("kind"), ID = Symbol("id");

  // Errors --------------------------------------------------------------------------------------------------------

  const errors = {};

  class HoldfastError extends Error {
    constructor(what, { where = "", hint = "", code } = {}) {
      super(`${what}${where ? ` (at ${where})` : ""}${hint ? `. ${hint}` : ""}`);
      this.what = String(what);
      this.where = String(where);
      this.hint = String(hint);
      this.code = code === undefined ? this.constructor.code : String(code);
    }
    get name() { return this.constructor.errorName; }
  }

  function defineErrors(classes) {
    for (const [name, base, code] of classes) {
      const kind = base ? class extends errors[base] {} : HoldfastError;
      defineProperty(kind, "name", { value: name });
      kind.errorName = name;
      kind.code = code;
      errors[name] = kind;
    }
  }

  function errorFrom(form) {
    const kind = errors[form.name] || HoldfastError;
    return new kind(form.what, form);
  }

  // A script that cannot be read. A SyntaxError may also be of a script that runs, as by JSON.parse.
  class Unreadable {
    constructor({ message, stack }) {
      const line = /<input>:(\d+)/.exec(String(stack));
      this.message = line ? `line ${line[1]}: ${message}` : String(message);
    }
  }

  function compile(source) {
    try {
      return evaluate(`(async function script() {${source}\n})`);
    } catch (error) {
      throw error instanceof SyntaxError ? new Unreadable(error) : error;
    }
  }

  function describe(error) {
    try {
      if (error instanceof HoldfastError) {
        const { name, code, what, where, hint, message, stack } = error;
        return stringify({ name, code, what, where, hint, message, trace: String(stack) });
      }
      if (error instanceof Error) {
        const limit = error.name === "InternalError" && /out of memory/.test(error.message) ? "memory" : undefined;
        return stringify({
          name: String(error.name), message: String(error.message), trace: String(error.stack), kind: limit,
        });
      }
      if (error instanceof Unreadable) return stringify({ name: "SyntaxError", message: error.message, kind: "syntax" });
      if (error === null) return stringify({ name: "Error", message: "null", kind: "memory" });
      return stringify({ name: "Error", message: `the script threw ${String(error)}` });
    } catch {
      return '{"name":"Error","message":"the script threw something that cannot be shown"}';
    }
  }

  // Values --------------------------------------------------------------------------------------------------------

  class Opaque {
    constructor(mark, content) {
      this.type = mark.slice(1);
      this.value = content;
      freeze(this);
    }
    toString() { return `${this.type} ${stringify(this.value)}`; }
  }

  class DateTime extends Date {
    #exact; #time;
    constructor(content) {
      super(isArray(content) ? content[0] : content);
      this.#exact = content;
      this.#time = this.getTime();
    }
    get text() { return isArray(this.#exact) ? this.#exact[0] : this.#exact; }
    static form(date) {
      if (#exact in date && date.#time === date.getTime()) return { $datetime: date.#exact };
      return { $datetime: date.toISOString().replace("Z", "+00:00") };
    }
  }

  class Float {
    constructor(value) { this.value = Number(value); freeze(this); }
    valueOf() { return this.value; }
  }

  class Special {
    constructor(...parts) { this.parts = parts; freeze(this); }
  }

  class Encoded {
    constructor(text) { this.text = text; }
  }

  class Result {}
  const resultClasses = {};

  function mark(container, key, value) {
    defineProperty(container, key, { value, enumerable: !isArray(container), configurable: true, writable: true });
    return container;
  }

  const MARKS = {
    $int: (content) => (content[0] === "-" ? -BigInt(content.slice(1)) : BigInt(content)),
    $bytes: (content) => Bytes.fromBase64(content),
    $datetime: (content) => new DateTime(content),
    $tuple: (content) => mark(reviveItems(content), KIND, "$tuple"),
    $set: (content) => new Set(reviveItems(content)),
    $frozenset: (content) => mark(new Set(reviveItems(content)), KIND, "$frozenset"),
    $dict: (content) => new Map(content.map((pair) => reviveItems(pair))),
    $object: (content) => reviveObject(content),
    $float: (content) => Number(content.replace("inf", "Infinity")),
    [MARK]: reviveSpecial,
  };

  function isMark(tree, names) { return names.length === 1 && names[0][0] === "$"; }

  function isFloat(tree) { return tree !== null && typeof tree === "object" && typeof tree.$float === "string"; }

  function revive(tree) {
    if (tree === null || typeof tree !== "object") return tree;
    if (isArray(tree)) return reviveItems(tree);
    const names = keys(tree);
    if (!isMark(tree, names)) return reviveObject(tree, names);
    const read = MARKS[names[0]];
    return read ? read(tree[names[0]]) : new Opaque(names[0], tree[names[0]]);
  }

  function reviveItems(items) {
    let floats;
    const made = items.map((item, index) => {
      if (isFloat(item)) (floats ||= new Set()).add(index);
      return revive(item);
    });
    return floats ? mark(made, FLOATS, floats) : made;
  }

  function reviveObject(tree, names = keys(tree)) {
    let floats;
    const made = {};
    for (const name of names) {
      if (isFloat(tree[name])) (floats ||= new Set()).add(name);
      setOwn(made, name, revive(tree[name]));
    }
    return floats ? mark(made, FLOATS, floats) : made;
  }

  function setOwn(made, name, value) {
    if (name === "__proto__") defineProperty(made, name, { value, enumerable: true, configurable: true, writable: true });
    else made[name] = value;
  }

  function reviveSpecial([kind, ...rest]) {
    if (kind === "absent") return undefined;
    if (kind === "handle") return makeHandle(rest[0], stringify([rest[1], []]));
    if (kind === "page") {
      const page = reviveItems(rest[0]);
      for (const [name, value] of [["next", rest[1]], ...Object.entries(rest[2])]) {
        defineProperty(page, name, { value: revive(value), configurable: true, writable: true });
      }
      return page;
    }
    const [name, fields, reference] = rest;
    const values = reviveObject(fields);
    if (reference !== undefined) return makeHandle(name, stringify([reference, []]), values);
    resultClasses[name] ||= { [name]: class extends Result {} }[name];
    return Object.assign(new resultClasses[name](), values);
  }

  // Writes a value as JSON. Functions and objects of the API may be the value itself, or an entry of it.
  function encode(value, depth = 0, open = [], asFloat = false) {
    switch (typeof value) {
      case "string": return stringify(value);
      case "boolean": return value ? "true" : "false";
      case "number": return encodeNumber(value, asFloat);
      case "bigint": return encodeWhole(value);
      case "undefined":
        if (depth === 0) return `{"${MARK}":["absent"]}`;
        throw new errors.UnsupportedError("undefined is no value", { hint: "Use null, or leave it out" });
      case "function": {
        const target = targets.get(value);
        if (unread.has(value)) throw new errors.UnsupportedError("a promise is no value", { hint: "Await it first" });
        if (depth <= 1) return target ? special("handle", parse(target)) : special("function", functionId(value), value.name);
        throw new errors.UnsupportedError("a function cannot be stored");
      }
      case "symbol": throw new errors.UnsupportedError("a symbol cannot be stored");
    }
    if (value === null) return "null";
    if (open.includes(value)) throw new errors.CircularReferenceError("a value contains itself");
    if (open.length >= MAX_DEPTH) throw new errors.TooDeepError(`a value is nested more than ${MAX_DEPTH} deep`);
    open.push(value);
    try {
      return encodeObject(value, depth, open);
    } finally {
      open.pop();
    }
  }

  // The host reads no decimals of thousands of digits.
  function encodeWhole(value) {
    const digits = (value < 0n ? -value : value).toString(16);
    return digits.length < 1000 ? value.toString() : `{"$int":"${value < 0n ? "-" : ""}0x${digits}"}`;
  }

  function encodeNumber(value, asFloat) {
    if (!isFinite(value)) return stringify({ $float: String(value).replace("Infinity", "inf").replace("NaN", "nan") });
    if (Object.is(value, -0)) return "-0.0";
    if (!isInteger(value)) return String(value);
    if (asFloat) return /[e.]/.test(String(value)) ? String(value) : `${value}.0`;
    if (isSafeInteger(value)) return String(value);
    return BigInt(value).toString() + ".0";
  }

  function special(...parts) { return stringify({ [MARK]: parts }); }

  function encodeObject(value, depth, open) {
    const inner = (each, isFloat) => encode(each, depth + 1, open, isFloat);
    if (isArray(value)) {
      const floats = value[FLOATS];
      const items = Array.from(value, (item, index) => inner(item, floats !== undefined && floats.has(index)));
      return value[KIND] ? `{"${value[KIND]}":[${items}]}` : `[${items}]`;
    }
    const prototype = getPrototypeOf(value);
    if (prototype === Object.prototype || prototype === null) return encodePlain(value, inner);
    if (value instanceof Bytes) return `{"$bytes":"${value.toBase64()}"}`;
    if (value instanceof ArrayBuffer) return `{"$bytes":"${new Bytes(value).toBase64()}"}`;
    if (value instanceof Date) return encodeDate(value);
    if (value instanceof Map) return `{"$dict":[${[...value].map(([key, item]) => `[${inner(key)},${inner(item)}]`)}]}`;
    if (value instanceof Set) return `{"${value[KIND] || "$set"}":[${[...value].map((item) => inner(item))}]}`;
    if (value instanceof Opaque) return stringify({ ["$" + value.type]: value.value });
    if (value instanceof Float) return encodeNumber(value.value, true);
    if (value instanceof Special) {
      const [kind, name, content] = value.parts;
      return `{"${MARK}":[${stringify(kind)},${stringify(name)}${content ? `,[${content.map((each) => inner(each))}]` : ""}]}`;
    }
    if (value instanceof Number || value instanceof String || value instanceof Boolean) return inner(value.valueOf());
    const isRecord = value instanceof Result || records.has(value);
    if (isRecord && isResult && keys(value).length) return encodePlain(value, inner);
    if (isRecord && depth <= 1 && typeof value.id === "string") return special("id", value.id);
    if (value instanceof Encoded) return value.text;
    if (depth <= 1 && targets.has(value)) {
      flush(value);
      return special("handle", parse(targets.get(value)));
    }
    const name = (value.constructor && value.constructor.name) || "object";
    throw new errors.UnsupportedError(`an object of the class ${name} is no value`, {
      hint: "Give a plain object, an array, a Map, a Set, a Date or a Uint8Array",
    });
  }

  function encodeDate(value) {
    if (Number.isNaN(value.getTime())) throw new errors.UnsupportedError("an invalid Date is no value");
    return stringify(DateTime.form(value));
  }

  function encodePlain(value, inner) {
    const floats = value[FLOATS];
    const parts = [];
    for (const name of keys(value)) {
      const item = value[name];
      if (item !== undefined) parts.push(`${stringify(name)}:${inner(item, floats !== undefined && floats.has(name))}`);
    }
    const text = `{${parts}}`;
    return parts.length === 1 && parts[0].startsWith('"$') ? `{"$object":${text}}` : text;
  }

  // Objects of the API --------------------------------------------------------------------------------------------

  const functions = new Map(), ids = new WeakMap();
  const targets = new WeakMap(), records = new WeakSet(), prototypes = {}, traps = {};
  const waiting = new Map();
  const parents = new WeakMap(); // by handle of a part, the handle that it is a part of
  const liveHandles = new Map(); // by target: one handle for each object with live values
  const views = new WeakMap(); // by handle: the live values that the script has, by name
  const unread = new WeakSet(); // names of handles that were neither called nor awaited
  let types = {}, lastFunction = 0, lastCall = 0;
  let newFunctions = []; // of a call: they last as long as it does, unless it registers a hook
  let isResult = false; // whether a result is written: records are then dicts of their fields

  function functionId(value) {
    if (!ids.has(value)) {
      ids.set(value, ++lastFunction);
      functions.set(lastFunction, value);
      newFunctions.push(lastFunction);
    }
    return ids.get(value);
  }

  function encodeAll(values) { return `[${Array.from(values, (value) => encode(value))}]`; }

  function forget(numbers) {
    for (const number of numbers) {
      ids.delete(functions.get(number));
      functions.delete(number);
    }
  }

  // A getter of a value may make a call in between.
  function encodeCall(target, name, values) {
    const outer = newFunctions, given = [];
    newFunctions = given;
    try {
      return [`[${target},${stringify(name)},${encodeAll(values)}]`, given];
    } finally {
      newFunctions = outer;
    }
  }

  function call(target, name, values, finish) {
    const id = ++lastCall;
    return follow(id, new Call((resolve, reject) => {
      const [text, given] = encodeCall(target, name, values);
      waiting.set(id, { resolve, reject, finish, functions: name === "()" ? [] : given });
      send("C", id, text);
    }));
  }

  // The promise of a call. Notes whether anybody waits for it, so that no error is lost.
  class Call extends Promise {
    static [Symbol.species] = Promise;
    then(done, failed) {
      const id = this[ID], found = waiting.get(id);
      if (found) found.isAwaited = true;
      const made = super.then(done, failed);
      return typeof failed === "function" ? made : follow(id, setPrototypeOf(made, Call.prototype));
    }
    catch(failed) {
      const found = waiting.get(this[ID]);
      if (found) found.isHandled = true;
      return super.catch(failed);
    }
  }

  function follow(id, promise) {
    promise[ID] = id;
    return promise;
  }

  async function readAll(target, name, values, page) {
    const items = [...page];
    const last = values[values.length - 1];
    const hasOptions = last !== null && typeof last === "object" && getPrototypeOf(last) === Object.prototype;
    const rest = hasOptions ? values.slice(0, -1) : values;
    for (let next = page.next; next !== null && next !== undefined; ) {
      const following = await call(target, name, [...rest, { ...(hasOptions ? last : {}), cursor: next }]);
      items.push(...following);
      next = following.next;
    }
    return items;
  }

  // Live values: a script changes its copy of one, and before the next call the host gets the changes.

  function noteView(self, name, value, text) {
    if (!views.has(self)) views.set(self, new Map());
    if (typeof value === "object" && value !== null) views.get(self).set(name, { value, text });
    else views.get(self).delete(name);
    return value;
  }

  function flush(self, only) {
    const root = parents.get(self) ?? self;
    for (const [name, view] of views.get(root) ?? []) {
      if (only !== undefined && name !== only) continue;
      const before = view.text, after = encode(view.value, 2);
      if (before === after) continue;
      view.text = after;
      call(targets.get(root), "=" + name, [new Encoded(before), new Encoded(after)]);
    }
  }

  function* allViews() {
    for (const [target, reference] of liveHandles) {
      const self = reference.deref();
      if (!self) liveHandles.delete(target);
      else for (const [name, view] of views.get(self) ?? []) yield [self, name, view];
    }
  }

  function textOf(view) {
    try { return encode(view.value, 2); }
    catch { return null; }
  }

  // The texts of all live values before a run, so that it answers for its own changes only: a hook may run inside of a
  // run that has others.
  function noteTexts() { return new Map(Array.from(allViews(), ([, , view]) => [view, textOf(view)])); }

  function changesSince(known) {
    return [...allViews()].filter(([, , view]) => {
      const text = textOf(view);
      return text !== view.text && text !== known.get(view);
    });
  }

  function flushAll(known) {
    for (const [self, name] of changesSince(known)) flush(self, name);
  }

  // After a run that failed: its changes must not reach a later one. What the script holds is as the host has it again.
  function dropChanges(known) {
    for (const [self, name, view] of changesSince(known)) {
      views.get(self).delete(name);
      call(targets.get(self), "." + name, [], (value) => {
        if (!views.get(self).has(name)) noteView(self, name, refresh(view.value, value), encode(value, 2));
      }).catch(() => {});
    }
  }

  function refresh(old, made) {
    const isPlain = (value) => typeof value === "object" && value !== null && getPrototypeOf(value) === Object.prototype;
    if (isArray(old) && isArray(made) && old[KIND] === made[KIND]) old.length = made.length;
    else if (isPlain(old) && isPlain(made)) keys(old).forEach((key) => { if (!(key in made)) delete old[key]; });
    else return made;
    for (const key of keys(made)) setOwn(old, key, refresh(old[key], made[key]));
    delete old[FLOATS];
    return made[FLOATS] ? mark(old, FLOATS, made[FLOATS]) : old;
  }

  function readLive(self, name) {
    try {
      flush(self, name);
    } catch {
      return Promise.resolve(views.get(self).get(name).value); // it cannot be stored so far, which the next call says
    }
    return call(targets.get(self), "." + name, [], (value) => {
      const view = views.get(self)?.get(name), text = encode(value, 2);
      // What was changed since the read began stays: the host merges it with its own changes.
      if (view && (view.text === text || encode(view.value, 2) !== view.text)) return view.value;
      return noteView(self, name, view ? refresh(view.value, value) : value, text);
    });
  }

  function writeLive(self, name, value) {
    const text = encode(value, value === undefined ? 0 : 2);
    call(targets.get(self), "=" + name, [new Encoded(text)]);
    noteView(self, name, value, text);
  }

  // A name that a handle does not have here: it may be called or awaited. Of one that is none, the host says so.
  function makeUnread(self, name, isLive) {
    const target = targets.get(self);
    const read = () => (isLive ? readLive(self, name) : call(target, "." + name, []));
    const refuse = (key) => {
      throw new errors.InvalidError(`'${name}' is a promise`, { hint: `Await it first: (await object.${name}).${String(key)}` });
    };
    const made = new Proxy((...values) => call(target, name, values), {
      get(_, key) {
        if (key === "then" || key === "catch" || key === "finally") return (...given) => read()[key](...given);
        return isLive && typeof key === "string" ? refuse(key) : made;
      },
      set(_, key) { refuse(key); },
    });
    unread.add(made);
    return made;
  }

  function makeTraps(name, isLive) {
    return {
      get(inner, key, self) {
        const isOwn = typeof key === "symbol" || key in inner || key[0] === "_" || key === "then" || key === "toJSON";
        return isOwn ? Reflect.get(inner, key, self) : makeUnread(self, key, isLive);
      },
      set(_, key, value, self) {
        if (!isLive) throw new errors.InvalidError(`'${String(key)}' of ${name} cannot be set`, { hint: "Call its functions" });
        writeLive(self, String(key), value);
        return true;
      },
    };
  }

  function defineType(name, { functions: names, properties, members, live }) {
    const prototype = {};
    defineProperty(prototype, Symbol.toStringTag, { value: name });
    for (const each of names) {
      defineProperty(prototype, each, {
        value: { [each](...values) {
          const target = targets.get(this);
          if (!target) throw new errors.InvalidError(`${each} is a function of a ${name}`);
          flush(this);
          return call(target, each, values, (result) => {
            if (isArray(result) && "next" in result) {
              defineProperty(result, "all", { value: () => readAll(target, each, values, result) });
            }
            return result;
          });
        } }[each],
      });
    }
    for (const each of properties.filter((each) => !live.includes(each))) {
      defineProperty(prototype, each, { get() { return call(targets.get(this), "." + each, []); } });
    }
    for (const [each, [type, isFunction]] of Object.entries(members)) {
      const inside = (self, values) => {
        const target = targets.get(self);
        return makeHandle(type, `${target.slice(0, -2)}${target.at(-3) === "[" ? "" : ","}[${stringify(each)},${encodeAll(values)}]]]`, undefined, self);
      };
      defineProperty(prototype, each, isFunction
        ? { value: { [each](...values) { return inside(this, values); } }[each] }
        : { get() { return inside(this, []); } });
    }
    prototypes[name] = prototype;
    traps[name] = makeTraps(name, live.length > 0);
  }

  function defineModule({ module, functions: names }) {
    const target = stringify([module, []]);
    const made = {};
    for (const each of names) made[each] = { [each](...values) { return call(target, each, values); } }[each];
    const self = new Proxy(freeze(made), makeTraps(module, false));
    targets.set(self, target);
    return self;
  }

  function makeHandle(name, target, fields, parent) {
    if (!(name in types)) { // a type that is used for the first time: the host describes it
      const answer = send("T", 0, `["?",${stringify(name)},[]]`);
      const described = parse(answer.slice(1));
      if (answer[0] !== "R") throw errorFrom(described);
      defineType(name, types[name] = described);
    }
    const { callable: isCallable, live } = types[name];
    const known = liveHandles.get(target)?.deref();
    if (known) return known;
    const made = isCallable
      ? (...values) => call(target, "()", values)
      : new Proxy(Object.assign(Object.create(prototypes[name]), fields), traps[name]);
    targets.set(made, target);
    if (!isCallable) records.add(made);
    if (parent) parents.set(made, parents.get(parent) ?? parent);
    if (live.length) liveHandles.set(target, new WeakRef(made));
    return made;
  }

  // What the worker calls -----------------------------------------------------------------------------------------

  function encodeResult(value) {
    isResult = true;
    try {
      return encode(value);
    } finally {
      isResult = false;
    }
  }

  const begun = new Map(); // by id of a run that did not end: the texts before it

  function execute(id, start) {
    const known = noteTexts();
    begun.set(id, known);
    new Promise((resolve) => resolve(start())).then((value) => {
      flushAll(known);
      send("D", id, encodeResult(value));
    }).catch((error) => {
      send("F", id, describe(error));
      dropChanges(known);
    }).then(() => begun.delete(id));
  }

  const show = (value) => {
    if (typeof value === "string") return value;
    try { return stringify(value, (_, each) => (typeof each === "bigint" ? each.toString() : each)) ?? String(value); }
    catch { return String(value); }
  };
  // The worker takes no halves of surrogate pairs.
  const print = (...values) => { send("P", 0, values.map(show).join(" ").toWellFormed()); };

  const commands = {
    start(text) {
      const config = parse(text);
      types = config.types;
      defineErrors(config.errors);
      const modules = {};
      for (const [name, type] of Object.entries(types)) {
        if (type.module) modules[type.module] = defineModule(type);
        else defineType(name, type);
      }
      const operator = (name) => (...values) => new Special("operator", name, values);
      const holdfast = { errors: freeze({ ...errors }), DateTime, Opaque, HoldfastError, ...modules };
      holdfast.float = (value) => new Float(value);
      holdfast.datetime = (text) => new DateTime(text);
      holdfast.tuple = (...values) => mark([...values], KIND, "$tuple");
      holdfast.opaque = (type, value) => new Opaque("$" + type, value);
      for (const name of [...config.operators, "ReplaceValue"]) holdfast[name] = operator(name);
      for (const name of ["MISSING", "UNRESOLVED"]) holdfast[name] = new Special("constant", name);
      const define = (name, value) => defineProperty(globalThis, name, { value, configurable: true, writable: true });
      define("holdfast", freeze(holdfast));
      define("store", makeHandle(config.root, "[0,[]]"));
      define("print", print);
      define("console", freeze({ log: print, info: print, warn: print, error: print, debug: print }));
    },
    run(id, text) {
      const [source, args] = parse(text);
      execute(id, () => {
        globalThis.args = revive(args);
        return compile(source)();
      });
    },
    invoke(id, text) {
      const [number, values] = parse(text);
      execute(id, () => {
        const called = functions.get(number);
        if (!called) throw new errors.NotFoundError("the script has no such function any more");
        return called(...reviveItems(values));
      });
    },
    // Ends a run that waits for what never comes.
    abandon(id) {
      dropChanges(begun.get(id));
      begun.delete(id);
    },
    // Returns whether the call failed and nobody handles that, which is known for sure only after the end of the script.
    settle(id, kind, text, isEnd) {
      const { resolve, reject, finish, functions: given, isAwaited, isHandled } = waiting.get(id);
      waiting.delete(id);
      forget(given);
      try {
        const value = kind === "R" ? revive(parse(text)) : errorFrom(parse(text));
        if (kind !== "R") reject(value);
        else resolve(finish ? finish(value) : value);
      } catch (error) {
        reject(error);
      }
      return kind === "E" && !(isEnd ? isHandled : isAwaited);
    },
  };
  return (name, ...values) => commands[name](...values) === true;
})()
