# awk -v page=PAGE -v name=NAME -v out=FOLDER -f snippets.awk PAGE: the cpp blocks of a page as files. A block with #include
# lines is a program: FOLDER/NAME.LINE.cpp. The others are functions of FOLDER/NAME.cpp, in the namespace of NAME.hpp, which
# has the names that the page declares around them. Prints how many blocks it wrote.
BEGIN { together = out "/" name ".cpp" }
/^[ \t]*```cpp[ \t]*$/ { inside = 1; first = NR + 1; text = ""; program = 0; next }
/^[ \t]*```/ && inside {
  inside = 0
  ++count
  line = "#line " first " \"" page "\"\n"
  if (program) {
    file = out "/" name "." first ".cpp"
    printf "%s%s", line, text > file
    close(file)
  } else {
    if (!started) printf "#include \"%s.hpp\"\n", name > together
    started = 1
    printf "namespace %s {\nint snippet_%d() {\n%s%sreturn 0;\n}\n}\n", name, first, line, text > together
  }
  next
}
inside {
  if ($0 ~ /^#include/) program = 1
  text = text $0 "\n"
}
END {
  if (inside) { print "the block at line " first - 1 " has no end" > "/dev/stderr"; exit 1 }
  print count + 0
}
