"""deploy/pytorchjob.yaml has only fields that the training operator knows, and what the operator needs to number its pods.

The fields are those of PyTorchJobSpec, RunPolicy and ReplicaSpec in kubeflow/training-operator,
pkg/apis/kubeflow.org/v1. The API server drops fields that it does not know without a word.
"""
import sys

try:
    import yaml
except ImportError:
    print("SKIPPED: Python's yaml is not there (package python3-yaml)")
    sys.exit(77)

RUN_POLICY = {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy",
              "suspend", "managedBy"}

with open(sys.argv[1], encoding="utf-8") as file:
    job = yaml.safe_load(file)
assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob"), job
assert set(job) == {"apiVersion", "kind", "metadata", "spec"}, set(job)
spec = job["spec"]
assert set(spec) <= {"runPolicy", "elasticPolicy", "pytorchReplicaSpecs", "nprocPerNode"}, set(spec)
assert set(spec["runPolicy"]) <= RUN_POLICY, set(spec["runPolicy"]) - RUN_POLICY
assert spec["runPolicy"]["cleanPodPolicy"] in {"All", "Running", "None"}
replicas = spec["pytorchReplicaSpecs"]
assert set(replicas) == {"Master", "Worker"} and replicas["Master"]["replicas"] == 1
for name, replica in replicas.items():
    assert set(replica) <= {"replicas", "template", "restartPolicy"}, f"{name}: {set(replica)}"
    assert replica["restartPolicy"] in {"Always", "OnFailure", "Never", "ExitCode"}, name
    containers = replica["template"]["spec"]["containers"]
    # The operator gives RANK and the others to this container alone.
    assert [container["name"] for container in containers] == ["pytorch"], name
    assert containers[0]["resources"]["limits"]["nvidia.com/gpu"] == "1", f"{name}: a pod is one rank"
    assert not {variable["name"] for variable in containers[0]["env"]} & {"RANK", "WORLD_SIZE", "MASTER_ADDR"}, name
print("right")
