-- Write a recap of each thread that has a new checkpoint since the last run, into the state of `agent:recap`.
--
--     holdfast run examples/scripts/recap.lua prefix=chat-
--
-- It prints a line for each thread, and returns how many were new.

local recap = store:state("agent:recap")
local new = 0

for _, thread in ipairs(store:threads({prefix = args.prefix or ""}):all()) do
  local known = recap:get("recap/" .. thread.name)
  if known == holdfast.null or known.id ~= thread.latest then
    local checkpoint = store:thread(thread.name):get()
    local messages = checkpoint.state.messages or holdfast.list()
    recap:set("recap/" .. thread.name, {
      id = checkpoint.id,
      time = checkpoint.time,
      messages = #messages,
      last = messages[#messages] or holdfast.null,
    })
    new = new + 1
    print(thread.name .. ": " .. #messages .. " messages")
  end
end

return new
