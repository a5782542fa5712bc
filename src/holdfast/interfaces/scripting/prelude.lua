-- What a script in Lua has: `store`, `holdfast`, `print`, and the libraries that cannot reach out of it. Returns the
-- functions that the worker calls. `send` is the worker's: it sends a call to the host and returns the answer.
local send, show = ...
local _G, load, type, pairs, ipairs, next, select = _G, load, type, pairs, ipairs, next, select
local error, pcall, xpcall, tostring, tonumber = error, pcall, xpcall, tostring, tonumber
local setmetatable, getmetatable, rawequal, rawget, rawset = setmetatable, getmetatable, rawequal, rawget, rawset
local rawlen = rawlen
local concat, pack, unpack, sort = table.concat, table.pack, table.unpack, table.sort
local format, gsub, byte, sub, find, match = string.format, string.gsub, string.byte, string.sub, string.find, string.match
local integer, huge, floor = math.type, math.huge, math.floor
local utf8_length, traceback = utf8.len, debug.traceback
local get_metatable = debug.getmetatable  -- the real one, also where a script cannot see it

local MARK, MAX_DEPTH = "$script", 100
local LOCKED = "locked"
get_metatable(send).__metatable = LOCKED  -- of all objects of Python: a script may catch an exception of the worker

-- Errors ----------------------------------------------------------------------------------------------------------

local errors, error_kinds = {}, {}
local Error = { __name = "holdfast.error", __metatable = LOCKED }
Error.__index = Error
Error.__tostring = function(self) return self.message end

function Error:is(name)
  local kind = error_kinds[rawget(self, "name")]
  while kind do
    if kind.name == name then return true end
    kind = error_kinds[kind.base]
  end
  return false
end

local function make_error(form)
  local what, where, hint = tostring(form.what), tostring(form.where or ""), tostring(form.hint or "")
  local message = what .. (where ~= "" and " (at " .. where .. ")" or "") .. (hint ~= "" and ". " .. hint or "")
  return setmetatable(
    { name = form.name, code = form.code, what = what, where = where, hint = hint, message = message }, Error
  )
end

local function raise(name, what, hint) error(errors[name](what, { hint = hint }), 0) end

local function define_errors(classes)
  for _, each in ipairs(classes) do
    local name, base, code = each[1], each[2], each[3]
    error_kinds[name] = { name = name, base = base }
    errors[name] = function(what, options)
      local o = options or {}
      return make_error({ name = name, code = o.code or code, what = what, where = o.where, hint = o.hint })
    end
  end
end

-- Kinds of values -------------------------------------------------------------------------------------------------

local function kind(name)
  return { __name = "holdfast." .. name, __metatable = LOCKED }
end

local List, Tuple, Set, FrozenSet, Dict = kind("list"), kind("tuple"), kind("set"), kind("frozenset"), kind("dict")
local Bytes, DateTime, Opaque, Special, Null = kind("bytes"), kind("datetime"), kind("opaque"), kind("special"), kind("null")
local Result, Page = kind("result"), kind("page")
local SEQUENCES = { [List] = "", [Page] = "", [Tuple] = "$tuple", [Set] = "$set", [FrozenSet] = "$frozenset" }
local null = setmetatable({}, Null)
Null.__tostring = function() return "null" end
Bytes.__index = {}
Bytes.__len = function(self) return #self.data end
Bytes.__eq = function(a, b) return a.data == b.data end
Bytes.__tostring = function(self) return self.data end
DateTime.__tostring = function(self) return self.text end
DateTime.__eq = function(a, b) return a.text == b.text end
Opaque.__tostring = function(self) return self.type .. " " .. self.json end
Opaque.__eq = function(a, b) return a.type == b.type and a.json == b.json end

-- Values as JSON --------------------------------------------------------------------------------------------------

local orders = setmetatable({}, { __mode = "k" })
local was_list = setmetatable({}, { __mode = "k" })  -- by table of the script: it was sent as a list, and stays one if it is emptied
local handles, function_ids, functions, last_function = setmetatable({}, { __mode = "k" }), {}, {}, 0
local record_fields = setmetatable({}, { __mode = "k" })  -- of handles that came with fields, such as sessions
local new_functions = {}  -- since the last call: they last as long as the call, unless it registers a hook
local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\" }
for i = 0, 31 do ESCAPES[string.char(i)] = format("\\u%04x", i) end
ESCAPES["\127"] = "\\u007f"

local function quote(text)
  if not utf8_length(text) then
    raise("UnsupportedError", "a text is not UTF-8", "Use holdfast.bytes(…) for bytes")
  end
  return '"' .. gsub(text, '[%c"\\]', ESCAPES) .. '"'
end

local function number(value)
  if integer(value) == "integer" then return format("%d", value) end
  if value ~= value then return '{"$float":"nan"}' end
  if value == huge then return '{"$float":"inf"}' end
  if value == -huge then return '{"$float":"-inf"}' end
  local text = format("%.17g", value)
  local short = format("%.15g", value)
  if tonumber(short) == value then text = short end
  return find(text, "[.e]") and text or text .. ".0"
end

local encode, flush
local is_result = false  -- whether a result is written: records are then dicts of their fields

local function function_id(value)
  local id = function_ids[value]
  if not id then
    last_function = last_function + 1
    id = last_function
    function_ids[value], functions[id] = id, value
    new_functions[#new_functions + 1] = id
  end
  return id
end

local function sequence(value, count, depth, open)
  local parts = {}
  for i = 1, count do
    local item = rawget(value, i)
    if item == nil then raise("UnsupportedError", "a list has a hole", "Use holdfast.null") end
    parts[i] = encode(item, depth + 1, open)
  end
  return "[" .. concat(parts, ",") .. "]"
end

local function entries(value, depth, open)
  local parts = {}
  for key, item in next, value do
    parts[#parts + 1] = "[" .. encode(key, depth + 1, open) .. "," .. encode(item, depth + 1, open) .. "]"
  end
  return '{"$dict":[' .. concat(parts, ",") .. "]}"
end

-- The keys of a dict: first those that it came with, in their order, then the others by name.
local function ordered(value)
  local known, keys = orders[value], {}
  local from_host = {}
  for _, key in ipairs(known or keys) do
    from_host[key] = true
    if rawget(value, key) ~= nil then keys[#keys + 1] = key end
  end
  local others = {}
  for key in next, value do
    if type(key) ~= "string" then
      raise("UnsupportedError", "a key of a table is no text", "Use holdfast.dict{…} for keys of other types")
    end
    if not from_host[key] then others[#others + 1] = key end
  end
  sort(others)
  for _, key in ipairs(others) do keys[#keys + 1] = key end
  return keys
end

local function plain(value, depth, open)
  local first = next(value)
  if first == nil then return was_list[value] and "[]" or "{}" end
  if type(first) == "number" then
    local count = rawlen(value)
    for key in next, value do
      if integer(key) ~= "integer" or key < 1 or key > count then
        raise("UnsupportedError", "a table is neither a list nor a dict",
          "Use holdfast.null for holes, and holdfast.dict{…} where numbers are keys")
      end
    end
    local text = sequence(value, count, depth, open)
    was_list[value] = true
    return text
  end
  was_list[value] = nil
  local parts = {}
  for i, key in ipairs(ordered(value)) do
    parts[i] = quote(key) .. ":" .. encode(rawget(value, key), depth + 1, open)
  end
  local text = "{" .. concat(parts, ",") .. "}"
  return #parts == 1 and find(text, '^{"%$') and '{"$object":' .. text .. "}" or text
end

local function of_table(value, depth, open)
  if rawequal(value, null) then return "null" end
  local meta = get_metatable(value)
  if meta == nil then return plain(value, depth, open) end
  local mark = SEQUENCES[meta]
  if mark then
    local text = sequence(value, rawlen(value), depth, open)
    return mark == "" and text or '{"' .. mark .. '":' .. text .. "}"
  end
  if meta == Dict then return entries(value, depth, open) end
  if meta == Bytes then return '{"$bytes":"' .. show("base64", value.data) .. '"}' end
  if meta == DateTime then return '{"$datetime":' .. (value.json or quote(value.text)) .. "}" end
  if meta == Opaque then return '{"$' .. value.type .. '":' .. value.json .. "}" end
  if meta == Special then
    local content = value.content
    local more = ""
    if content then
      local parts = {}
      for i = 1, content.n do parts[i] = encode(content[i], depth + 1, open) end
      more = ",[" .. concat(parts, ",") .. "]"
    end
    return '{"$script":["' .. value.kind .. '","' .. value.name .. '"' .. more .. "]}"
  end
  if meta == Result or handles[value] then
    local fields = record_fields[value] or value
    if is_result and next(fields) ~= nil then return plain(fields, depth, open) end
    if depth <= 1 and type(rawget(fields, "id")) == "string" then
      return '{"$script":["id",' .. quote(fields.id) .. "]}"
    end
  end
  if handles[value] and depth <= 1 then
    flush(value)
    return '{"$script":["handle",' .. handles[value] .. "]}"
  end
  if type(meta) == "table" and rawget(meta, "__metatable") == LOCKED then
    raise("UnsupportedError", "an object of the API is no value", "Give its fields")
  end
  return plain(value, depth, open)
end

function encode(value, depth, open)
  local t = type(value)
  if t == "string" then return quote(value) end
  if t == "number" then return number(value) end
  if t == "boolean" then return value and "true" or "false" end
  if t == "nil" then return '{"$script":["absent"]}' end
  if t == "function" then
    if depth > 1 then raise("UnsupportedError", "a function cannot be stored") end
    return '{"$script":["function",' .. function_id(value) .. ',""]}'
  end
  if t ~= "table" then raise("UnsupportedError", "a " .. t .. " cannot be stored") end
  if open[value] then raise("CircularReferenceError", "a value contains itself") end
  if depth >= MAX_DEPTH then raise("TooDeepError", "a value is nested more than " .. MAX_DEPTH .. " deep") end
  open[value] = true
  local text = of_table(value, depth, open)
  open[value] = nil
  return text
end

local function encode_all(count, values, first)
  local parts = {}
  for i = first, count do parts[#parts + 1] = encode(values[i], 0, {}) end
  return "[" .. concat(parts, ",") .. "]"
end

-- Objects of the API ----------------------------------------------------------------------------------------------

local define_type  -- below
local types = setmetatable({}, {
  __index = function(known, name)  -- a type that is used for the first time: the host describes it
    local ok, declared = send('["?",' .. quote(name) .. ",[]]")
    if not ok then error(make_error(declared), 0) end
    define_type(name, declared)
    return rawget(known, name)
  end,
})

local parents = setmetatable({}, { __mode = "k" })  -- by handle of a part, the handle that it is a part of
local live_handles = setmetatable({}, { __mode = "v" })  -- by target: one handle for each object with live values
local views = setmetatable({}, { __mode = "k" })  -- by handle: the live values that the script has, by name

local function make_handle(name, target, fields, parent)
  local meta = types[name]
  local made = meta.is_live and live_handles[target]
  if made then return made end
  made = setmetatable({}, meta)
  handles[made], record_fields[made], parents[made] = target, fields, parent and (parents[parent] or parent)
  if meta.is_live then live_handles[target] = made end
  return made
end

local function call(target, name, arguments)
  local mine = new_functions
  new_functions = {}
  local ok, value = send("[" .. target .. "," .. quote(name) .. "," .. arguments .. "]")
  if name ~= "()" then
    for _, id in ipairs(mine) do
      function_ids[functions[id]], functions[id] = nil, nil
    end
  end
  if ok then return value end
  error(make_error(value), 0)
end

-- Live values: a script changes its copy of one, and before the next call the host gets the changes.

local function note_view(self, name, value, text)
  views[self] = views[self] or {}
  views[self][name] = type(value) == "table" and { value = value, text = text } or nil
end

function flush(self, only)
  local root, changed = parents[self] or self, {}
  for name, view in pairs(views[root] or {}) do
    local after = (not only or only == name) and encode(view.value, 2, {}) or view.text
    if view.text ~= after then changed[view] = { name, after } end
  end
  for view, each in pairs(changed) do
    local before, name, after = view.text, each[1], each[2]
    view.text = after
    if before ~= after then call(handles[root], "=" .. name, "[" .. before .. "," .. after .. "]") end
  end
end

local function text_of(view)
  local ok, text = pcall(encode, view.value, 2, {})
  return ok and text
end

-- The texts of all live values before a run, so that it answers for its own changes only: a hook may run inside of a
-- run that has others.
local function note_texts()
  local known = {}
  for _, named in pairs(views) do
    for _, view in pairs(named) do known[view] = text_of(view) end
  end
  return known
end

local function changes_since(known)
  local found = {}
  for self, named in pairs(views) do
    for name, view in pairs(named) do
      local text = text_of(view)
      if text ~= view.text and text ~= known[view] then found[#found + 1] = { self, name, view } end
    end
  end
  return found
end

local function flush_all(known)
  for _, each in ipairs(changes_since(known)) do flush(each[1], each[2]) end
end

local function refresh(old, new)
  local meta = type(new) == "table" and get_metatable(new)
  local is_kind = type(old) == "table" and (get_metatable(old) or was_list[old] and List) == meta
  if not is_kind or not (meta == nil or meta == List) then return new end
  for key in next, old do
    if rawget(new, key) == nil then rawset(old, key, nil) end
  end
  for key, item in next, new do rawset(old, key, refresh(rawget(old, key), item)) end
  orders[old] = orders[new]
  return old
end

local function read_anew(self, name, view)
  local value = call(handles[self], "." .. name, "[]")
  local text = type(value) == "table" and encode(value, 2, {})
  if view and view.text == text then return view.value end
  value = view and refresh(view.value, value) or value
  note_view(self, name, value, text)
  return value
end

local function read_live(self, name)
  local view = views[self] and views[self][name]
  if view and not pcall(flush, self, name) then return view.value end  -- which the next call says
  return read_anew(self, name, view)
end

-- After a run that failed: its changes must not reach a later one. What the script holds is as the host has it again.
local function drop_changes(known)
  for _, each in ipairs(changes_since(known)) do
    local self, name, view = unpack(each)
    views[self][name], view.text = nil, nil
    pcall(read_anew, self, name, view)
  end
end

local function write_live(self, name, value)
  local text = encode(value, value ~= nil and 2 or 0, {})
  call(handles[self], "=" .. name, "[" .. text .. "]")
  note_view(self, name, value, text)
end

local function inside(target, name, arguments)
  local head = sub(target, 1, -3)
  return head .. (sub(head, -1) == "[" and "" or ",") .. "[" .. quote(name) .. "," .. arguments .. "]]]"
end

local function check_self(self, name, type_name)
  local target = type(self) == "table" and handles[self]
  if not target then
    raise("InvalidError", name .. " is a function of a " .. type_name, "Call it with a colon: object:" .. name .. "(…)")
  end
  return target
end

local function read_all(target, name, values, page)
  local items, following = setmetatable({}, List), page
  while true do
    for _, item in ipairs(following) do items[#items + 1] = item end
    if following.next == null or following.next == nil then return items end
    local options, count = {}, values.n
    if count > 1 and type(values[count]) == "table" and get_metatable(values[count]) == nil then
      for key, value in next, values[count] do options[key] = value end
      count = count - 1
    end
    options.cursor = following.next
    local more = { unpack(values, 1, count) }
    more[count + 1] = options
    following = call(target, name, encode_all(count + 1, more, 2))
  end
end

function define_type(name, declared)
  local methods, meta = {}, kind(name)
  for _, each in ipairs(declared.functions) do
    methods[each] = function(self, ...)
      local target = check_self(self, each, name)
      local values = pack(self, ...)
      flush(self)
      local result = call(target, each, encode_all(values.n, values, 2))
      if type(result) == "table" and get_metatable(result) == Page then
        rawset(result, "all", function() return read_all(target, each, values, result) end)
      end
      return result
    end
  end
  if methods["end"] then methods.end_ = methods["end"] end  -- which is no name in Lua
  local members, is_property = {}, {}
  for _, each in ipairs(declared.properties) do is_property[each] = true end
  for _, each in ipairs(declared.live) do is_property[each] = nil end
  for each, made in pairs(declared.members) do
    local type_name, is_function = made[1], made[2]
    if is_function then
      methods[each] = function(self, ...)
        local target = check_self(self, each, name)
        local values = pack(self, ...)
        return make_handle(type_name, inside(target, each, encode_all(values.n, values, 2)), nil, self)
      end
    else
      members[each] = type_name
    end
  end
  meta.is_live = #declared.live > 0
  meta.__index = function(self, key)
    local fields = record_fields[self]
    local found = fields and rawget(fields, key)
    if found == nil then found = methods[key] end
    if found ~= nil then return found end
    if members[key] then return make_handle(members[key], inside(handles[self], key, "[]"), nil, self) end
    if type(key) ~= "string" then raise("UnsupportedError", name .. " has no items", "Call its functions") end
    if sub(key, 1, 1) == "_" then return nil end
    if meta.is_live and not is_property[key] then return read_live(self, key) end
    return call(handles[self], "." .. key, "[]")  -- of a name that is none, the host says so
  end
  meta.__newindex = function(self, key, value)
    if not meta.is_live or type(key) ~= "string" then
      raise("InvalidError", "'" .. tostring(key) .. "' of " .. name .. " cannot be set", "Call its functions")
    end
    write_live(self, key, value)
  end
  meta.__len = function(self)
    if not methods.count then raise("UnsupportedError", name .. " has no length") end
    return methods.count(self)
  end
  meta.__pairs = function(self) return next, record_fields[self] or {} end
  meta.__tostring = function() return "<" .. name .. ">" end
  if declared.callable then
    meta.__call = function(self, ...)
      local values = pack(...)
      return call(handles[self], "()", encode_all(values.n, values, 1))
    end
  end
  types[name] = meta
end

local function define_module(declared)
  local target, made = "[" .. quote(declared.module) .. ",[]]", {}
  for _, each in ipairs(declared.functions) do
    made[each] = function(...)
      local values = pack(...)
      return call(target, each, encode_all(values.n, values, 1))
    end
  end
  return setmetatable(made, { __index = function(_, key) return call(target, "." .. tostring(key), "[]") end })
end

-- The values that the worker makes of what the host sends
local makers = {
  object = function(t, keys)
    orders[t] = keys
    return t
  end,
  list = function(t) return setmetatable(t, List) end,
  tuple = function(t) return setmetatable(t, Tuple) end,
  set = function(t) return setmetatable(t, Set) end,
  frozenset = function(t) return setmetatable(t, FrozenSet) end,
  dict = function(t) return setmetatable(t, Dict) end,
  bytes = function(data) return setmetatable({ data = data }, Bytes) end,
  datetime = function(text, json, timestamp)
    return setmetatable({ text = text, json = json, timestamp = timestamp }, DateTime)
  end,
  opaque = function(name, json, value) return setmetatable({ type = name, json = json, value = value }, Opaque) end,
  page = function(t, following, more)
    for name, value in pairs(more) do t[name] = value end
    t.next = following
    return setmetatable(t, Page)
  end,
  record = function(name, fields, reference)
    if reference then return make_handle(name, "[" .. reference .. ",[]]", fields) end
    return setmetatable(fields, Result)
  end,
  handle = function(name, reference) return make_handle(name, "[" .. reference .. ",[]]") end,
  null = null,
}

-- What the worker calls -------------------------------------------------------------------------------------------

local function describe(problem)
  if type(problem) == "table" and get_metatable(problem) == Error then
    local parts = {}
    for _, name in ipairs({ "name", "code", "what", "where", "hint", "message", "trace" }) do
      local value = rawget(problem, name)
      if type(value) == "string" and utf8_length(value) then parts[#parts + 1] = quote(name) .. ":" .. quote(value) end
    end
    return "{" .. concat(parts, ",") .. "}"
  end
  local ok, text = pcall(tostring, type(problem) == "table" and rawget(problem, "message") or problem)
  text = ok and type(text) == "string" and text or "the script raised something that cannot be shown"
  local message, trace = match(text, "^(.-)\n(stack traceback:.*)$")
  message = message or text
  local out = '{"name":"Error","message":' .. show("text", message) .. ',"trace":' .. show("text", trace or "")
  if find(message, "not enough memory", 1, true) then out = out .. ',"kind":"memory"' end
  return out .. "}"
end

local function handler(problem)
  if type(problem) == "table" and get_metatable(problem) == Error then
    if not rawget(problem, "trace") then rawset(problem, "trace", traceback("", 2)) end
    return problem
  end
  if type(problem) == "string" then return traceback(problem, 2) end
  return problem
end

local function finish(known, ok, value)
  if ok then
    local flushed, problem = pcall(flush_all, known)
    if not flushed then ok, value = false, problem end
  end
  if not ok then
    drop_changes(known)
    return "F", describe(value)
  end
  is_result = true
  local encoded, text = pcall(encode, value, 0, {})
  is_result, new_functions = false, {}
  if encoded then return "D", text end
  return "F", describe(text)
end

local commands = {}

function commands.run(source, name, args)
  local chunk, problem = load(source, "=" .. name, "t", _G)
  if not chunk then
    return "F", '{"name":"SyntaxError","kind":"syntax","message":' .. show("text", problem) .. "}"
  end
  _G.args = args
  local known = note_texts()
  return finish(known, xpcall(chunk, handler))
end

function commands.invoke(id, ...)
  local called = functions[id]
  if not called then return "F", describe(errors.NotFoundError("the script has no such function any more")) end
  local known = note_texts()
  return finish(known, xpcall(called, handler, ...))
end

function commands.start(config)
  define_errors(config.errors)
  local modules = {}
  for name, declared in pairs(config.types) do
    if declared.module ~= "" then modules[declared.module] = define_module(declared)
    else define_type(name, declared) end
  end
  local holdfast = {
    null = null, errors = errors,
    list = function(t) return setmetatable(t or {}, List) end,
    tuple = function(...) return setmetatable({ ... }, Tuple) end,
    set = function(t) return setmetatable(t or {}, Set) end,
    dict = function(t) return setmetatable(t or {}, Dict) end,
    bytes = function(data)
      if type(data) ~= "string" then raise("InvalidError", "bytes are made of a string") end
      return makers.bytes(data)
    end,
    datetime = function(text) return makers.datetime(tostring(text)) end,
    opaque = function(name, json) return makers.opaque(match(name, "^[%w_]+$") or "", tostring(json)) end,
    MISSING = setmetatable({ kind = "constant", name = "MISSING" }, Special),
    UNRESOLVED = setmetatable({ kind = "constant", name = "UNRESOLVED" }, Special),
  }
  local operators = { "ReplaceValue", unpack(config.operators) }
  for _, name in ipairs(operators) do
    holdfast[name] = function(...)
      return setmetatable({ kind = "operator", name = name, content = pack(...) }, Special)
    end
  end
  for name, module in pairs(modules) do holdfast[name] = module end
  _G.holdfast = holdfast
  _G.store = make_handle(config.root, "[0,[]]")
end

-- The libraries that scripts have ---------------------------------------------------------------------------------

local allowed = {
  "assert", "error", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget", "rawlen", "rawset", "select",
  "setmetatable", "getmetatable", "tonumber", "tostring", "type", "xpcall", "_VERSION", "_G",
  "coroutine", "math", "string", "table", "utf8",
}
local kept = {}
for _, name in ipairs(allowed) do kept[name] = _G[name] end
local clock = { time = os.time, clock = os.clock, date = os.date, difftime = os.difftime }
for name in pairs(_G) do _G[name] = nil end
for name, value in pairs(kept) do _G[name] = value end
_G.os = clock
_G.debug = { traceback = traceback }
_G.string.dump = nil
_G.load = function(chunk, name, mode, env) return load(chunk, name, "t", env == nil and _G or env) end
_G.print = function(...)
  local values, parts = pack(...), {}
  for i = 1, values.n do parts[i] = tostring(values[i]) end
  show("print", concat(parts, "\t"))
end

return commands, makers
