package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// One binary contains all programs of the control plane. What one program registers for its process must not affect the others.
func TestProgramsOfTheControlPlaneKeepApart(t *testing.T) {
	// client-go reads feature gates that have no flag from the environment. It reports an invalid value.
	badGate := "KUBE_FEATURE_ClientsAllowCBOR=maybe"
	for name, test := range map[string]struct {
		command, want string
		code          int
	}{
		"etcd":                              {"etcd --version", "etcd Version: ", 0},
		"API server":                        {"kube-apiserver --version", "Kubernetes v", 0},
		"controller manager":                {"kube-controller-manager --version", "Kubernetes v", 0},
		"scheduler":                         {"kube-scheduler --version", "Kubernetes v", 0},
		"kubectl":                           {"kubectl version --client", "Kustomize Version: ", 0},
		"kubectl has no flag of a server":   {"kubectl --version", "unknown flag: --version", 1},
		"kubectl has the gates of a client": {"kubectl get --raw / --server http://127.0.0.1:1", `cannot set feature gate \"ClientsAllowCBOR\"`, 1},
		"KWOK":                              {"kwok --version", "unknown flag: --version", 1},
		"none of them":                      {"control-plane", "start it as etcd, ", 2},
	} {
		t.Run(name, func(t *testing.T) {
			words := strings.Fields(test.command)
			cmd := exec.CommandContext(limited(t), filepath.Join(binDir(t), words[0]), words[1:]...)
			cmd.Env = append(os.Environ(), badGate, "KUBECONFIG="+os.DevNull)
			printed, _ := cmd.CombinedOutput() // the test compares the exit code
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(printed), test.want) {
				t.Errorf("%s ends with %d: want %d and %q in\n%s", test.command, code, test.code, test.want, printed)
			}
		})
	}
}
