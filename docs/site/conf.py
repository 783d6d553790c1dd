"""The web site that deploy/site.sh builds: Sphinx reads the Markdown pages as they are, and Breathe what Doxygen found."""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

project = html_title = "ddp"
root_doc = "README"
extensions = ["myst_parser", "breathe", "sphinx_copybutton"]
breathe_default_project = "ddp"  # deploy/site.sh says where it is
myst_heading_anchors = 6  # as code forges make them
highlight_language = "none"
copybutton_prompt_text = "$ "
html_theme = "furo"
html_show_copyright = html_copy_source = False
smartquotes = False


class CodeLinks(SphinxPostTransform):
    """Makes links of documented names in code type, such as `World::rebuild()`.

    A name may lack ddp:: before it (on pages about ddp::libtorch that too, which counts first there), and so may a member or
    an option of DistributedDataParallel lack the class.
    """

    default_priority = 20  # when links are made, since what stands in one stays as it is
    documented = {}

    def run(self, **_kwargs):
        if not self.documented:
            for name, _, _, page, anchor, _ in self.env.domains["cpp"].get_objects():
                if not re.search(r"(\b\w+)::\1$", name):  # the class, not its constructor
                    self.documented.setdefault(name, (page, anchor))
        for code in list(self.document.findall(nodes.literal)):
            around = {type(code.parent), type(code.parent.parent)}
            if not around & {nodes.reference, nodes.title} and (place := self.place(code.astext())):
                code.replace_self(make_refnode(self.app.builder, self.env.docname, *place, code.deepcopy()))

    def place(self, code):
        word = re.fullmatch(r"(\w+(?:::\w+)+|[A-Z]\w*|\w+(?=\())(?:\([^()]*\))?", code)
        name = word and re.sub("^Options::", "DistributedDataParallelOptions::", word[1])
        spaces = ["ddp::libtorch::", "ddp::"] if "libtorch" in self.env.docname else ["ddp::"]
        classes = ["DistributedDataParallel::", "DistributedDataParallelOptions::", ""]
        tried = [name, *(space + of + name for space in spaces for of in classes)] if name else []
        return next((self.documented[whole] for whole in tried if whole in self.documented), None)


def setup(app):
    app.add_post_transform(CodeLinks)
