"""A page for each public header: headers.py XML SOURCE changes Doxygen's XML to what Breathe is to show, and writes the pages
to SOURCE/include, where a link to the header's own file leads too."""

import itertools
import pathlib
import sys
import xml.etree.ElementTree as ET

xml, source = map(pathlib.Path, sys.argv[1:])
trees = {path.stem: ET.parse(path) for path in xml.glob("*.xml") if path.name != "Doxyfile.xml"}
compounds = {name: tree.find("compounddef") for name, tree in trees.items() if name != "index"}
for compound in compounds.values():
    for part in list(compound):
        if part.get("prot") == "private" or part.get("kind", "").startswith("private"):
            compound.remove(part)

headers = []
for entry in trees["index"].iterfind("compound[@kind='file']"):
    compound = compounds[entry.get("refid")]
    header = compound.find("location").get("file")
    entry.find("name").text = header  # Doxygen has no folders there, and headers of two folders may have one name
    # Breathe would declare the namespace on each page, in which Sphinx sees one thing declared many times.
    for namespace in compound.findall("innernamespace"):
        compound.remove(namespace)
        for section in compounds[namespace.get("refid")].findall("sectiondef"):
            shown = ET.SubElement(compound, "sectiondef", section.attrib)
            for member in section.findall("memberdef"):
                whole, name = member.findtext("qualifiedname"), member.find("name")
                # An inline namespace's members are listed outside of it too.
                if member.find("location").get("file") == header and whole == f"{namespace.text}::{name.text}":
                    name.text = whole
                    shown.append(member)
    if "/detail/" not in header:
        headers.append(header)

for name, tree in trees.items():
    tree.write(xml / f"{name}.xml")
contents = []
for header in sorted(headers):
    lines = pathlib.Path("include", header).read_text(encoding="utf-8").splitlines()
    summary = " ".join(line[3:] for line in itertools.takewhile(lambda line: line.startswith("// "), lines))
    page = source / "include" / f"{header}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"# {header}\n{summary}\n```{{doxygenfile}} {header}\n```\n")
    contents.append((header.removeprefix("ddp/"), header, summary))
(source / "include/ddp.md").write_text(
    "# Public headers\n"
    + "".join(f"- [{short}]({header}): {summary}\n" for short, header, summary in contents)
    + "```{toctree}\n:hidden:\n" + "".join(f"{short} <{header}>\n" for short, header, _ in contents) + "```\n")
