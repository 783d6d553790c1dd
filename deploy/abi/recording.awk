# What abidw says of a library, as it is recorded: without inline functions, private ones and folders of this machine, and with
# a function for each type of ddp, which takes it: libabigail compares what functions reach, and with the types of the standard
# library it drops what only containers reach. To be given the same file twice.
function attribute(name) {
  return match($0, " " name "='[^']*'") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4) : ""
}
FNR == 1 { pass++ }
pass == 1 && /<type-decl name='void'/ { nothing = attribute("id") }
pass == 1 && /<(class|enum|union)-decl / && !/is-declaration-only|is-anonymous/ {
  name = scope[depth] "::" attribute("name")
  if (name ~ /^::ddp::/) type[substr(name, 3)] = attribute("id")
}
pass == 1 && /<(namespace|class|union)-decl .*[^\/]>/ { scope[depth + 1] = scope[depth] "::" attribute("name"); depth++ }
pass == 1 && /<\/(namespace|class|union)-decl>/ { depth-- }
pass == 1 { next }
/<elf-symbol .* type='func-type' binding='weak-binding'/ { next }  # an inline one: a program that calls it has its own
# Functions without a symbol are private, or inline too; virtual ones have a place in the table.
!held && /<(member-function|function-decl) / {
  end = /<member-function/ ? "</member-function>" : "</function-decl>"
  block = ""
  held = 1
}
held {
  block = block $0 "\n"
  if (!index($0, end)) next
  held = 0
  if (block ~ /elf-symbol-id|vtable-offset/) printf "%s", block
  next
}
/<\/elf-function-symbols>/ {
  for (name in type)
    print "    <elf-symbol name='" name "' type='func-type' binding='global-binding' visibility='default-visibility'" \
          " is-defined='yes'/>" | "sort"
  close("sort")
}
/<\/abi-corpus>/ {
  print "  <abi-instr address-size='64' path='types' language='LANG_C_plus_plus_14'>"
  for (name in type)
    print "    <function-decl name='type " name "' mangled-name='" name "' visibility='default' binding='global'" \
          " elf-symbol-id='" name "'><parameter type-id='" type[name] "'/><return type-id='" nothing "'/></function-decl>" | "sort"
  close("sort")
  print "  </abi-instr>"
}
{ sub(/ path='.*\/runtime\//, " path='"); print }
