"""Hostile scripts: each ends with one of these codes, or with a result, where it only finds nothing.

`*` stands for any code of a script that was stopped: which limit is reached first depends on the machine.
"""

LUA = {
    "endless loop": ("while true do end", "script-timeout"),
    "endless loop that catches errors": ("while true do pcall(error, 'x') end", "script-timeout"),
    "endless coroutines": ("while true do coroutine.wrap(function() coroutine.yield() end)() end", "script-timeout"),
    "pattern bomb": (
        "return string.find(string.rep('a', 200), string.rep('a-', 60) .. 'b')",
        "script-timeout",
    ),
    "endless finalizer": (
        "setmetatable({}, {__gc = function() while true do end end}) "
        "local t = {} for i = 1, 1e7 do t = {t} if i % 100 == 0 then t = {} end end",
        "script-timeout",
    ),
    "growing table": ("local t = {} while true do t[#t + 1] = {} end", "script-memory"),
    "growing text": ("local s = 'x' while true do s = s .. s end", "script-memory"),
    "growing text that catches errors": (
        "local s = 'x' while true do pcall(function() s = s .. s end) end",
        "script-timeout",
    ),
    "huge text": ("return #string.rep('x', 1 << 40)", "script-failed"),
    "large text": ("return #string.rep('x', 1 << 28)", "script-memory"),
    "deep recursion": ("local function f() return 1 + f() end return f()", "*"),
    "deep recursion of C": ("local function f(s) return string.gsub(s, '.', f) end return f('aa')", "*"),
    "wide call": ("return select('#', table.unpack({}, 1, 1e7))", "script-failed"),
    "large call": ("store:thread('x'):put({text = string.rep('x', 2 << 20)})", "too-large"),
    "many calls": ("for i = 1, 1e9 do store:state('agent:h'):get('x') end", "script-timeout"),
    "many lines": ("while true do print(string.rep('x', 1000)) end", "too-large"),
    "many functions": (
        "while true do store:state('agent:h'):change('n', function(v) return 1 end, 1) end",
        "script-timeout",
    ),
    "endless transaction": (
        "store:transaction(function() error(holdfast.errors.ConflictError('x', {code = 'version-mismatch'})) end, "
        "{attempts = 1 << 40})",
        "script-timeout",
    ),
    "endless change": (
        "local s = store:state('agent:h') s:change('n', function() s:increment('m') s:set('n', 1) return 2 end, 1)",
        "script-timeout",
    ),
    "long wait": ("store:state('agent:h'):watch():poll(1e6)", "script-timeout"),
    "large page": ("return store:threads({limit = 1 << 40})", "too-large"),
    "pattern bomb for the host": (
        "return #store:state('agent:h'):list_keys({pattern = string.rep('*a', 16) .. 'b'})",
        0,
    ),
    "files": ("return io.open('/etc/passwd')", "script-failed"),
    "commands": ("return os.execute('id')", "script-failed"),
    "exit": ("os.exit(0)", "script-failed"),
    "modules": ("return require('os')", "script-failed"),
    "byte code": ("return load('\\27Lua')()", "script-failed"),
    "debug library": ("return debug.getregistry()", "script-failed"),
    "Python": ("return python.builtins", "script-failed"),
    "attributes of Python": ("return store.__class__ == nil and store._handle == nil", True),
    "functions of Python": ("return store:thread('t'):__init__()", "script-failed"),
    "metatables": ("return getmetatable(store)", "locked"),
    "metatable of Python": (
        "local _, e = pcall(function() local b = holdfast.bytes('x') b.data = {} store:thread('x'):put({b = b}) end) "
        "return type(e) .. tostring(getmetatable(e))",
        "userdatalocked",
    ),
    "metatable of texts": ("getmetatable('').__index = nil return store:state('agent:h'):get('canary')", "alive"),
    "broken libraries": (
        "for name in pairs(string) do string[name] = nil end table.concat, pairs, type = nil, nil, nil "
        "return store:state('agent:h'):get('canary')",
        "alive",
    ),
    "hostile error": ("error(setmetatable({}, {__tostring = function() error('x') end}))", "script-failed"),
    "error without a value": ("error()", "script-failed"),
    "forged error": ("error({code = 'denied', name = 'DeniedError', what = 'x'})", "script-failed"),
    "call within a call": (
        "local function again() return store:transaction(again) end return again()",
        "script-failed",
    ),
    "hook of its own changes": (
        "store.hooks:before('state.set', {name = 'loop', fail_closed = true})(function(call) "
        "store:state('agent:h'):set('again', 1) end) store:state('agent:h'):set('again', 1)",
        "hook-own-change",
    ),
}

JAVASCRIPT = {
    "endless loop": ("for (;;);", "script-timeout"),
    "endless loop that catches errors": ("for (;;) { try { throw 1 } catch {} }", "script-timeout"),
    "endless promises": ("const f = async () => { for (;;) await null }; await f()", "script-timeout"),
    "pattern bomb": ("return /^(a+)+$/.test('a'.repeat(60) + 'b')", "script-timeout"),
    "endless getter": ("await store.thread('x').put({ get a() { for (;;); } })", "script-timeout"),
    "endless numbers": ("let a = 3n; for (;;) a *= a", "*"),
    "growing array": ("const a = []; for (;;) a.push({})", "script-memory"),
    "growing text": ("let s = 'x'.repeat(1000); for (;;) s = [s, s].join('')", "*"),
    "growing text that catches errors": (
        "let s = 'x'.repeat(1000); for (;;) { try { s = [s, s].join('') } catch {} }",
        "script-timeout",
    ),
    "huge text": ("return 'x'.repeat(2 ** 40).length", "script-failed"),
    "large text": ("return [...'x'.repeat(1 << 28)].length", "*"),
    "large buffer": ("return new ArrayBuffer(1e10).byteLength", "*"),
    "large array": ("return new Array(4294967295).fill(0).length", "*"),
    "deep recursion": ("const f = () => 1 + f(); return f()", "script-failed"),
    "deep recursion of texts": ("let a = []; for (let i = 0; i < 1e5; i++) a = [a]; return JSON.stringify(a)", "*"),
    "large call": ("await store.thread('x').put({ text: 'x'.repeat(2 << 20) })", "too-large"),
    "many calls": ("for (;;) await store.state('agent:h').get('x')", "script-timeout"),
    "many calls at once": ("for (;;) store.state('agent:h').get('x')", "*"),
    "many lines": ("for (;;) print('x'.repeat(1000))", "too-large"),
    "half of a surrogate pair": ("print('\\ud800'); return 1", 1),
    "endless transaction": (
        "const { ConflictError } = holdfast.errors; await store.transaction("
        "() => { throw new ConflictError('x', { code: 'version-mismatch' }) }, { attempts: 2 ** 40 })",
        "script-timeout",
    ),
    "long wait": ("await (await store.state('agent:h').watch()).poll(1e6)", "script-timeout"),
    "large page": ("return await store.threads({ limit: 2 ** 40 })", "too-large"),
    "no end": ("await new Promise(() => {})", "script-failed"),
    "modules": ("return await import('os')", "script-failed"),
    "files": ("return await import('/etc/passwd')", "script-failed"),
    "worker's function": ("return typeof __send", "undefined"),
    "other globals": (
        "return [typeof std, typeof os, typeof process, typeof require].join()",
        ",".join(["undefined"] * 4),
    ),
    "Python": ("return typeof store.__class__ + typeof store._handle", "undefinedundefined"),
    "functions of Python": ("return await store.thread('t').__init__()", "script-failed"),
    "constructors": (
        "return typeof store.thread.constructor.constructor('return this')().__send",
        "undefined",
    ),
    "broken libraries": (
        "Array.prototype.map = Array.prototype.push = Array.prototype.join = null; JSON.stringify = JSON.parse = null; "
        "Object.keys = null; Promise.prototype.catch = null; return 1",
        "*",
    ),
    "poisoned prototypes": (
        "Object.prototype.toJSON = () => 'x'; Object.prototype.$script = ['absent']; "
        "return await store.state('agent:h').get('canary')",
        "alive",
    ),
    "hostile error": ("throw { toString() { throw 1 } }", "script-failed"),
    "error without a value": ("throw undefined", "script-failed"),
    "proxy": ("await store.thread('x').put(new Proxy({}, { ownKeys() { for (;;); } }))", "script-timeout"),
    "call within a call": (
        "const again = () => store.transaction(again); return await again()",
        "script-failed",
    ),
    "hook of its own changes": (
        "await store.hooks.before('state.set', { name: 'loop', fail_closed: true })(async (call) => { "
        "await store.state('agent:h').set('again', 1) }); await store.state('agent:h').set('again', 1)",
        "hook-own-change",
    ),
}
