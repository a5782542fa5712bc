"""The Lua scripts that run in Redis, each of them atomically.

A script cannot undo what it wrote. So all conditions of a batch are checked, together with the effects of the batch's
own changes before them, before the first change is made.

The first key is `{prefix}:store`; all others have the same prefix. It holds the store's id: a server that lost its data
does not have that id, and then nothing is done.
"""

from __future__ import annotations

import hashlib

from holdfast.backends.feed import MAX_LINES
from holdfast.backends.redis.key_layout import KEY_LAYOUTS, KeyLayout


class Script:
    """A script, and the digest by which Redis caches it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest: str = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _table_literal(shape: KeyLayout) -> str:
    indexes = (f"{{name='{index.name}',words={len(index.columns)}}}" for index in shape.indexes)
    columns = "true" if shape.space.columns else "false"
    feed = "true" if shape.space.in_feed else "false"
    return f"{{name='{shape.space.name}',columns={columns},feed={feed},indexes={{{','.join(indexes)}}}}}"


_TABLES = f"local spaces = {{{','.join(map(_table_literal, KEY_LAYOUTS.values()))}}}\n"

_COMMON = """
local call, sub, find, insert = redis.call, string.sub, string.find, table.insert
local base = sub(KEYS[1], 1, -6)
if call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return redis.error_reply('LOST the store is not here')
end

-- How far some words reach.
local function span(text, count, at)
  at = at or 0
  for _ = 1, count do at = find(text, '+', at + 1, true) end
  return at
end

local function rows_of(space, part) return base .. space.name .. ':' .. part end
local function keys_of(space, part) return base .. space.name .. '.keys:' .. part end
local function index_of(space, index, part) return base .. space.name .. '.by-' .. index.name .. ':' .. part end

-- Where an index has a row: the key of its sorted set, and the member.
local function entries(space, part, name, value)
  local found, at = {}, 0
  for place, index in ipairs(space.indexes) do
    local upto = span(value, index.words, at)
    found[place] = {index_of(space, index, part), sub(value, at + 1, upto) .. name}
    at = upto
  end
  return found
end

local function header(space, value)
  if not space.columns then return '' end
  return sub(value, 1, (find(value, '\\n', 1, true) or 0) - 1)
end
"""

COMMIT = Script(
    _TABLES
    + f"local MAX_LINES = {MAX_LINES}\n"
    + _COMMON
    + """
local record, number = base .. 'client:' .. ARGV[2], tonumber(ARGV[3])
local known = call('GET', record)
if known then
  local last = tonumber(sub(known, 1, find(known, ' ', 1, true) - 1))
  if last > number then return redis.error_reply('OVERTAKEN a later group was made') end
  if last == number then
    -- Written again, so that whoever waits for the disk on this connection waits for the group as well.
    call('SET', record, known, 'EX', ARGV[4])
    return known
  end
end

local function drop(space, part)
  local gone = {rows_of(space, part), keys_of(space, part)}
  for _, index in ipairs(space.indexes) do insert(gone, index_of(space, index, part)) end
  call('UNLINK', unpack(gone))
  call('ZREM', base .. space.name, part)
end

local function unlist(space, part, name, value)
  for _, entry in ipairs(entries(space, part, name, value)) do call('ZREM', entry[1], entry[2]) end
end

local function remove(space, part, name)
  local rows = rows_of(space, part)
  if #space.indexes > 0 then
    local old = call('HGET', rows, name)
    if old then unlist(space, part, name, old) end
  end
  if call('HDEL', rows, name) == 1 then
    call('ZREM', keys_of(space, part), name)
    if call('EXISTS', rows) == 0 then call('ZREM', base .. space.name, part) end
  end
end

local function after(start)
  if start == '' then return '+' end
  return '(' .. sub(start, 1, -2) .. ','
end

local function remove_under(space, part, start)
  for _, name in ipairs(call('ZRANGEBYLEX', keys_of(space, part), '[' .. start, after(start))) do
    remove(space, part, name)
  end
end

local function drop_under(space, start)
  local low = start == '' and '-' or '[' .. start
  for _, part in ipairs(call('ZRANGEBYLEX', base .. space.name, low, after(start))) do
    drop(space, part)
  end
end

local function store(space, part, name, value, free)
  local rows = rows_of(space, part)
  if #space.indexes > 0 then
    local old = not free and call('HGET', rows, name)
    if old then unlist(space, part, name, old) end
    for _, entry in ipairs(entries(space, part, name, value)) do call('ZADD', entry[1], 0, entry[2]) end
  end
  if call('HSET', rows, name, value) == 1 then
    call('ZADD', keys_of(space, part), 0, name)
    if call('HLEN', rows) == 1 then call('ZADD', base .. space.name, 0, part) end
  end
end

-- The place of the first change of a batch whose condition does not hold.
local function refused(first, count)
  local seen, gone = {}, {}
  for place = 0, count - 1 do
    local at = first + 4 * place
    local code, number = sub(ARGV[at], 1, 1), sub(ARGV[at], 2)
    local part, name, what = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local full = number .. ' ' .. part .. name
    if code == 'D' or code == 'F' or code == 'A' then
      insert(gone, full)
    elseif code == 'X' then
      seen[full] = false
    else
      local space = spaces[tonumber(number)]
      local there = seen[full]
      if there == nil then
        for _, start in ipairs(gone) do
          if sub(full, 1, #start) == start then there = false break end
        end
      end
      if code == 'E' then
        local value = there
        if there == nil then
          value = call(space.columns and 'HGET' or 'HEXISTS', rows_of(space, part), name)
          if value == 0 then value = false end
        end
        if value == false or space.columns and header(space, value) ~= what then return place end
      else
        if there == nil and code ~= 'P' then there = call('HEXISTS', rows_of(space, part), name) == 1 end
        if there and (code == 'C' or code == 'N') then return place end
        if code == 'C' or code == 'P' or (code == 'U' and not there) then seen[full] = what end
      end
    end
  end
end

-- The lines that the batches change, which the first two words of a key name; `any` if they delete whole tenants.
local changed, any = {}, false
local function report(part, name)
  local line = string.match(part .. name, '^[^+]*%+[^+]*%+')
  if line then changed[line] = true else any = true end
end

local function make(first, count)
  for at = first, first + 4 * (count - 1), 4 do
    local code, space = sub(ARGV[at], 1, 1), spaces[tonumber(sub(ARGV[at], 2))]
    local part, name, what = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    if space.feed and code ~= 'E' and code ~= 'N' then report(part, name) end
    if code == 'C' then store(space, part, name, what, true)
    elseif code == 'P' then store(space, part, name, what, false)
    elseif code == 'U' then
      if call('HEXISTS', rows_of(space, part), name) == 0 then store(space, part, name, what, true) end
    elseif code == 'X' then remove(space, part, name)
    elseif code == 'F' then remove_under(space, part, name)
    elseif code == 'D' or code == 'A' then drop_under(space, part)
    end
  end
end

local outcomes, at = {ARGV[3]}, 5
while ARGV[at] do
  local count = tonumber(ARGV[at])
  local place = refused(at + 1, count)
  if not place then make(at + 1, count) end
  insert(outcomes, place or '-')
  at = at + 1 + 4 * count
end
local lines = {}
if any or next(changed) then
  local number = call('HINCRBY', KEYS[1], 'changes', 1)
  for line in pairs(changed) do
    insert(lines, number)
    insert(lines, line)
  end
  local key = base .. 'changes'
  for first = 1, #lines, 4000 do call('ZADD', key, unpack(lines, first, math.min(first + 3999, #lines))) end
  if any then
    call('HSET', KEYS[1], 'forgotten', number)
  elseif call('ZCARD', key) > 2 * MAX_LINES then
    local last = call('ZRANGE', key, -MAX_LINES - 1, -MAX_LINES - 1, 'WITHSCORES')[2]
    call('ZREMRANGEBYRANK', key, 0, -MAX_LINES - 1)
    call('HSET', KEYS[1], 'forgotten', last)
  end
end
local said = table.concat(outcomes, ' ')
-- Last: where memory is short Redis refuses the first command that takes some, and removals should still be made.
call('SET', record, said, 'EX', ARGV[4])
return said
"""
)
"""Applies a group of batches. Takes the store's id, the client's slot, the group's number, the seconds to remember it,
and for each batch the number of its changes and four arguments for each of these. Returns the group's number, and for
each batch `-` or the number of the change that was refused."""

READ = Script(
    _TABLES
    + _COMMON
    + """
local at = 1
local function take()
  at = at + 1
  return ARGV[at]
end

-- What a query finds: names, and what is under them. One string each, since many short ones take long to read.
local names, lengths, values, count

local function add(space, part, found, shown, bodies, scanned)
  if not bodies and not space.columns then
    for place, name in ipairs(found) do names[count + place] = shown .. name end
    count = count + #found
    return
  end
  local rows = rows_of(space, part)
  for first = 1, #found, 4000 do
    for place, value in ipairs(call('HMGET', rows, unpack(found, first, math.min(first + 3999, #found)))) do
      if value and not bodies then value = header(space, value) end
      if value or scanned then
        count = count + 1
        names[count] = shown .. found[first + place - 1]
        lengths[count] = value and #value or -1
        values[count] = value or ''
      end
    end
  end
end

local function get(space)
  for _ = 1, tonumber(take()) do
    local part, found = take(), {}
    for place = 1, tonumber(take()) do found[place] = take() end
    add(space, part, found, part, true, false)
  end
end

local function scan(space, index, bodies, reverse, limit, part, low, high, whole)
  local key = index and index_of(space, index, part) or keys_of(space, part)
  local found
  if reverse then found = call('ZREVRANGEBYLEX', key, high, low, 'LIMIT', 0, limit)
  else found = call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit)
  end
  if index then
    for place, member in ipairs(found) do found[place] = sub(member, span(member, index.words) + 1) end
  end
  add(space, part, found, whole and part or '', bodies, true)
end

local function scan_parts(space, index, bodies, reverse, limit, first, last, low, high)
  local parts
  if reverse then parts = call('ZREVRANGEBYLEX', base .. space.name, last, first)
  else parts = call('ZRANGEBYLEX', base .. space.name, first, last)
  end
  for _, part in ipairs(parts) do
    if limit >= 0 and count >= limit then return end
    local from, upto = '-', '+'
    if sub(low, 1, #part) == part then from = '[' .. sub(low, #part + 1) end
    if high ~= '' and sub(high, 1, #part) == part then upto = '(' .. sub(high, #part + 1) end
    scan(space, index, bodies, reverse, limit < 0 and -1 or limit - count, part, from, upto, true)
  end
end

local answers = {}
while ARGV[at + 1] do
  local kind, space = take(), spaces[tonumber(take())]
  names, lengths, values, count = {}, {}, {}, 0
  if kind == 'G' then
    get(space)
  else
    local index, bodies, reverse = space.indexes[tonumber(take())], take() == '1', take() == '1'
    local limit = tonumber(take())
    if kind == 'S' then
      scan(space, index, bodies, reverse, limit, take(), take(), take(), false)
    else
      scan_parts(space, index, bodies, reverse, limit, take(), take(), take(), take())
    end
  end
  insert(answers, table.concat(names, ' '))
  insert(answers, table.concat(lengths, ' '))
  insert(answers, table.concat(values))
end
return answers
"""
)
"""Runs queries. Takes the store's id, and the arguments of each query. Returns three strings for each: the names of the
rows, without the part if there is only one; the lengths of their values; and the values. A length of -1 stands for a
indexed row that is missing."""

CHANGES = Script(
    _COMMON
    + """
local now = call('HMGET', KEYS[1], 'changes', 'forgotten')
local info = redis.pcall('INFO', 'replication')
local history = type(info) == 'string' and string.match(info, 'master_replid:(%w+)') or '0'
local lines = {}
if ARGV[2] ~= '' then lines = call('ZRANGEBYSCORE', base .. 'changes', '(' .. ARGV[2], '+inf') end
return {now[1] or '0', now[2] or '0', history, lines}
"""
)
"""Takes the store's id, and a number or nothing. Returns the number of the last change, that of the last one that was
forgotten, the id of the server's history, and the lines that changed after the given number."""

FORGET_DELETED = Script(
    _COMMON
    + """
local key = base .. 'changes'
local forgotten = tonumber(call('HGET', KEYS[1], 'forgotten') or '0')
local found = call('ZRANGE', key, 0, -1, 'WITHSCORES')
for at = 1, #found, 2 do
  local upto = span(found[at], 1)
  if call('HEXISTS', base .. 'lines:' .. sub(found[at], 1, upto), sub(found[at], upto + 1)) == 0 then
    call('ZREM', key, found[at])
    forgotten = math.max(forgotten, tonumber(found[at + 1]))
  end
end
call('HSET', KEYS[1], 'forgotten', forgotten)
return forgotten
"""
)
"""Takes the store's id. Removes the names of lines that do not exist any more from the list of changes."""

CHECK = Script(
    _TABLES
    + _COMMON
    + """
local space, part, from = spaces[tonumber(ARGV[2])], ARGV[3], ARGV[4]
local rows, keys, wrong = rows_of(space, part), keys_of(space, part), {}
local count = call('HLEN', rows)
if not call('ZSCORE', base .. space.name, part) then
  if count > 0 then insert(wrong, 'has rows and is not listed') end
elseif count == 0 then
  insert(wrong, 'is listed and has no rows')
end
if call('ZCARD', keys) ~= count then insert(wrong, 'has another number of rows than of names') end
for _, index in ipairs(space.indexes) do
  if call('ZCARD', index_of(space, index, part)) ~= count then
    insert(wrong, 'has another number of rows than the index by ' .. index.name)
  end
end
local names = call('ZRANGEBYLEX', keys, from, '+', 'LIMIT', 0, ARGV[5])
for _, name in ipairs(names) do
  local value = call('HGET', rows, name)
  if not value then
    insert(wrong, 'lacks the row ' .. name)
  elseif space.columns and not find(value, '\\n', 1, true) then
    insert(wrong, 'has a row that is not one, ' .. name)
  else
    for place, entry in ipairs(entries(space, part, name, value)) do
      if not call('ZSCORE', entry[1], entry[2]) then
        insert(wrong, 'lacks ' .. name .. ' in the index by ' .. space.indexes[place].name)
      end
    end
  end
end
return {names[#names] or '', wrong}
"""
)
"""Checks some rows of one part. Takes the store's id, the table, the part, the first name and how many. Returns the
last name that was checked, and the findings."""

OPEN = Script("""
local id = redis.call('HGET', KEYS[1], 'id')
if not id then
  redis.call('HSET', KEYS[1], unpack(ARGV))
  id = ARGV[2]
end
return {id, redis.call('HGET', KEYS[1], 'format')}
""")
"""Creates the store if it does not exist: takes its first fields, the id first. Returns the id and the format."""
