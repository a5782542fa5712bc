// A hook: addresses in what agents write are replaced before they are stored.
//
//     store.hooks.before("state.*", scope="agent:*")(ScriptHook("examples/scripts/redact.js", store))
//
// It returns the value with `[address]` in place of each.

const ADDRESS = /[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{2,64}/g;

function redact(value) {
  if (typeof value === "string") return value.replace(ADDRESS, "[address]");
  if (Array.isArray(value)) return value.map(redact);
  if (value !== null && typeof value === "object" && value.constructor === Object) {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, redact(item)]));
  }
  return value;
}

return (call) => redact(call.value);
