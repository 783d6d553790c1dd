"""deploy/mpijob.yaml has only fields that the MPI operator knows, and its numbers fit each other.

The fields are those of MPIJobSpec and RunPolicy in kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go. The API
server drops fields that it does not know without a word, so a misspelt one would do nothing.
"""
import sys

try:
    import yaml
except ImportError:
    print("SKIPPED: Python's yaml is not there (package python3-yaml)")
    sys.exit(77)

FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath",
             "launcherCreationPolicy", "mpiImplementation"},
    "spec.runPolicy": {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit",
                       "schedulingPolicy", "suspend", "managedBy"},
    "spec.mpiReplicaSpecs": {"Launcher", "Worker"},
    "spec.mpiReplicaSpecs.Launcher": {"replicas", "template", "restartPolicy"},
    "spec.mpiReplicaSpecs.Worker": {"replicas", "template", "restartPolicy"},
}
VALUES = {
    "spec.launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
    "spec.mpiImplementation": {"OpenMPI", "Intel", "MPICH"},
    "spec.runPolicy.cleanPodPolicy": {"All", "Running", "None"},
    "spec.mpiReplicaSpecs.Launcher.restartPolicy": {"Never", "OnFailure"},
    "spec.mpiReplicaSpecs.Worker.restartPolicy": {"Never", "OnFailure", "Always", "ExitCode"},
}


def at(job, path):
    for key in filter(None, path.split(".")):
        job = job[key]
    return job


with open(sys.argv[1], encoding="utf-8") as file:
    job = yaml.safe_load(file)
assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob"), job
for path, known in FIELDS.items():
    unknown = set(at(job, path)) - known
    assert not unknown, f"{path}: the operator does not know {unknown}; it knows {known}"
for path, known in VALUES.items():
    assert at(job, path) in known, f"{path} is {at(job, path)!r}, expected one of {known}"

spec = job["spec"]
launcher = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
worker = spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
container = worker["containers"][0]
arguments = launcher["args"]
slots = spec["slotsPerWorker"]
assert int(arguments[arguments.index("-np") + 1]) == slots * spec["mpiReplicaSpecs"]["Worker"]["replicas"]
assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == slots
assert launcher["image"] == container["image"]
exported = {arguments[i + 1] for i, word in enumerate(arguments) if word == "-x"}
assert exported == {variable["name"] for variable in launcher["env"]}, exported
mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
assert mounts == {"shared-memory": "/dev/shm"} and worker["volumes"][0]["name"] == "shared-memory"
with open(sys.argv[2], encoding="utf-8") as file:
    dockerfile = file.read()
for word in (spec["sshAuthMountPath"], container["args"][-1], f"Port {container['readinessProbe']['tcpSocket']['port']}"):
    assert word in dockerfile, f"{word} is not in {sys.argv[2]}"
print("right")
