//go:build packages

// Package upstream names the packages that the suites need, so that go.sum has them.
package upstream

import (
	_ "github.com/berth-project/berth/manifests"
	_ "github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	_ "github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
	_ "k8s.io/kubernetes/test/integration/framework"
	_ "k8s.io/kubernetes/test/integration/scheduler"
	_ "k8s.io/kubernetes/test/integration/scheduler_perf"
	_ "k8s.io/kubernetes/test/integration/util"
)
