"""The pods of a job of Kubeflow's operators have only fields of Kubernetes' own schema, with values of its types.

The schema is the one in Kubernetes' Python client (package python3-kubernetes).
"""
import re
import sys

try:
    import yaml
    from kubernetes.client import models
except ImportError as missing:
    print(f"SKIPPED: {missing} (packages python3-yaml and python3-kubernetes)")
    sys.exit(77)

PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}


def check(value, kind, path):
    """Raises ValueError if `value` is not of `kind`, a type in the notation of Kubernetes' client.

    That is "list[V1Volume]" and "dict(str, str)" or, in newer versions, "List[V1Volume]" and "Dict[str, str]".
    """
    container = re.fullmatch(r"[lL]ist\[(?P<item>.*)\]|[dD]ict[\[(]str, (?P<value>.*)[\])]", kind)
    if kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            raise ValueError(f"{path} is {value!r}, expected {kind}")
    elif container and container["item"]:
        for index, item in enumerate(value):
            check(item, container["item"], f"{path}[{index}]")
    elif container:
        for key, item in value.items():
            check(item, container["value"], f"{path}.{key}")
    else:
        model = getattr(models, kind)
        fields = {model.attribute_map[name]: model.openapi_types[name] for name in model.openapi_types}
        for key, item in value.items():
            if key not in fields:
                raise ValueError(f"{path}.{key}: Kubernetes does not know it; {kind} has {sorted(fields)}")
            check(item, fields[key], f"{path}.{key}")


with open(sys.argv[1], encoding="utf-8") as file:
    spec = yaml.safe_load(file)["spec"]
replicas = spec.get("mpiReplicaSpecs") or spec["pytorchReplicaSpecs"]
assert set(replicas) in ({"Launcher", "Worker"}, {"Master", "Worker"})
for name, replica in replicas.items():
    check(replica["template"], "V1PodTemplateSpec", name)

# The check can fail: at a field that is misspelt, and at a value of another type.
container = replicas["Worker"]["template"]["spec"]["containers"][0]
for wrong in ({"comand": []}, {"image": 1}, {"resources": {"limits": {"nvidia.com/gpu": 8}}}):
    try:
        check({**container, **wrong}, "V1Container", "planted")
    except ValueError as error:
        print(f"refused, as it should be: {error}"[:100])
    else:
        sys.exit(f"{wrong} was not refused")
