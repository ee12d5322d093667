package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/internal/version"
	"github.com/berth-project/berth/pkg/cli/console"
)

const (
	// systemNamespace is where the manifests and the chart install Berth.
	systemNamespace = "berth-system"
	// componentTimeout bounds how long version asks the cluster.
	componentTimeout = 10 * time.Second
)

// component is a part of Berth, or the API server, with its version.
type component struct {
	Name string `json:"name"`
	// Version is the tag of the image for a part that runs in the cluster. Empty if it is not known.
	Version string `json:"version,omitempty"`
	// From is the image, or what else told the version.
	From string `json:"from"`
}

// installedVersions are those of this program and of what runs in the cluster.
type installedVersions struct {
	Components []component `json:"components"`
	// Unread are the parts of the cluster that could not be read, with the errors.
	Unread []string `json:"unread,omitempty"`
}

// versionCommand is "kubectl berth version".
type versionCommand struct {
	out    io.Writer
	output console.Output
	client bool
}

func newVersion(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &versionCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "The versions of this program and of Berth in the cluster",
		Long: `The versions of this program, of the API server, and of Berth's Deployments and CronJobs in namespace ` + systemNamespace + `, by the tags of their images.
What cannot be read is named and is no failure.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd.Context(), func() (*console.Cluster, error) { return console.Connect(flags) })
		},
	}
	c.output.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&c.client, "client", false, "The version of this program only. The cluster is not asked.")
	return cmd
}

func (c *versionCommand) run(ctx context.Context, connect func() (*console.Cluster, error)) error {
	v := installedVersions{Components: []component{{Name: "kubectl-berth", Version: version.Get(), From: "this program"}}}
	if !c.client {
		ctx, cancel := context.WithTimeout(ctx, componentTimeout)
		defer cancel()
		cluster, err := connect()
		if err == nil {
			v.readFrom(ctx, cluster)
		} else {
			v.unread("the cluster", err)
		}
	}
	if done, err := c.output.Structured(c.out, "Versions", v); done {
		return err
	}
	rows := [][]string{{"COMPONENT", "VERSION", "FROM"}}
	for _, part := range v.Components {
		rows = append(rows, []string{part.Name, cmp.Or(part.Version, "-"), part.From})
	}
	if err := c.output.Table(c.out, rows); err != nil {
		return err
	}
	for _, unread := range v.Unread {
		if _, err := fmt.Fprintln(c.out, "not read: "+unread); err != nil {
			return err
		}
	}
	return nil
}

func (v *installedVersions) unread(what string, err error) {
	v.Unread = append(v.Unread, what+": "+console.Advise(err))
}

func (v *installedVersions) readFrom(ctx context.Context, cluster *console.Cluster) {
	server, err := serverVersion(ctx, cluster)
	if err != nil {
		v.unread("the API server", err) // it would not answer the other questions either
		return
	}
	v.Components = append(v.Components, component{Name: "API server", Version: server, From: cluster.Config.Host})
	v.readComponents(ctx, cluster)
}

// readComponents reads which images run.
func (v *installedVersions) readComponents(ctx context.Context, cluster *console.Cluster) {
	before := len(v.Components)
	var deployments appsv1.DeploymentList
	if err := cluster.List(ctx, &deployments, client.InNamespace(systemNamespace)); err != nil {
		v.unread("Deployments of "+systemNamespace, err)
	}
	for i := range deployments.Items {
		v.add(&deployments.Items[i].Spec.Template)
	}
	var cronJobs batchv1.CronJobList
	if err := cluster.List(ctx, &cronJobs, client.InNamespace(systemNamespace)); err != nil {
		v.unread("CronJobs of "+systemNamespace, err)
	}
	for i := range cronJobs.Items {
		v.add(&cronJobs.Items[i].Spec.JobTemplate.Spec.Template)
	}
	if len(v.Components) == before && len(v.Unread) == 0 {
		v.Unread = append(v.Unread, "namespace "+systemNamespace+" has no Deployment or CronJob of Berth")
	}
}

// isBerth is true for the pods of Berth's components. Other objects of the installation have no labels.
func isBerth(template *corev1.PodTemplateSpec) bool {
	return template.Labels["app.kubernetes.io/name"] == "berth"
}

// add adds the component whose pods have this template, if it is one of Berth.
func (v *installedVersions) add(template *corev1.PodTemplateSpec) {
	if !isBerth(template) {
		return
	}
	for i := range template.Spec.Containers {
		image := template.Spec.Containers[i].Image
		name := image[strings.LastIndex(image, "/")+1:]
		name, _, _ = strings.Cut(name, "@")
		name, tag, _ := strings.Cut(name, ":")
		v.Components = append(v.Components, component{Name: name, Version: tag, From: image})
	}
}
