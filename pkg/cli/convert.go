package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// convertCommand is "kubectl berth convert".
type convertCommand struct {
	in     io.Reader
	out    io.Writer
	file   string
	target string
}

func newConvert(streams genericiooptions.IOStreams) *cobra.Command {
	c := &convertCommand{in: streams.In, out: streams.Out}
	cmd := &cobra.Command{
		Use:   "convert -f FILE --target KIND/NAME",
		Short: "Make a WorkloadSpread of an ACK ResourcePolicy or an Azure PlacementPolicy",
		Long: `Make a WorkloadSpread of an ACK ResourcePolicy (scheduling.alibabacloud.com/v1alpha1) or an Azure PlacementPolicy
(placement-policy.scheduling.x-k8s.io/v1alpha1). What has no equivalent is named in comments above the spread. Nothing is
written to the cluster.`,
		Example: `  kubectl berth convert -f policy.yaml --target Deployment/web
  kubectl get resourcepolicy web -o yaml | kubectl berth convert -f - --target Deployment/web`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return c.run() },
	}
	cmd.Flags().StringVarP(&c.file, "filename", "f", "", "File with the policies, or - for standard input.")
	cmd.Flags().StringVar(&c.target, "target", "", "Workload to divide, as Deployment/web or Rollout.v1alpha1.argoproj.io/web: a policy selects pods, a spread names their workload.")
	return cmd
}

// conversion is a spread, with notes on what it does not take over from the policy.
type conversion struct {
	spread *v1beta1.WorkloadSpread
	notes  []string
}

func (c *conversion) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

func (c *convertCommand) run() error {
	if c.file == "" {
		return errors.New("say which file to convert with -f FILE")
	}
	target, err := parseTarget(c.target)
	if err != nil {
		return err
	}
	in := c.in
	if c.file != "-" {
		file, err := os.Open(c.file)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it is only read
		in = file
	}
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(in))
	defer func() { _ = documents.Close() }()
	buffer := make([]byte, 1<<20)
	for n := 1; ; n++ {
		size, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", c.file, err)
		}
		if len(bytes.TrimSpace(buffer[:size])) == 0 {
			continue
		}
		converted, err := convert(buffer[:size], *target)
		if err != nil {
			return fmt.Errorf("%s, document %d: %w", c.file, n, err)
		}
		if err := converted.print(c.out); err != nil {
			return err
		}
	}
}

// parseTarget reads KIND/NAME or KIND.VERSION.GROUP/NAME.
func parseTarget(text string) (*v1beta1.TargetReference, error) {
	kind, name, found := strings.Cut(text, "/")
	if !found || kind == "" || name == "" {
		return nil, fmt.Errorf("say which workload to divide with --target KIND/NAME, for instance Deployment/web; got %q", text)
	}
	apiVersion := "apps/v1"
	if kind == "Job" {
		apiVersion = "batch/v1"
	}
	if parts := strings.SplitN(kind, ".", 3); len(parts) == 3 {
		kind, apiVersion = parts[0], parts[2]+"/"+parts[1]
	} else if len(parts) == 2 {
		return nil, fmt.Errorf("--target %s: name version and group as in Rollout.v1alpha1.argoproj.io/web", text)
	}
	return &v1beta1.TargetReference{APIVersion: apiVersion, Kind: kind, Name: name}, nil
}

func convert(document []byte, target v1beta1.TargetReference) (*conversion, error) {
	var header metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &header); err != nil {
		return nil, err
	}
	c := &conversion{spread: &v1beta1.WorkloadSpread{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "WorkloadSpread"},
		ObjectMeta: metav1.ObjectMeta{Name: header.Name, Namespace: header.Namespace},
	}}
	c.spread.Spec.TargetReference = target
	var err error
	switch group, _, _ := strings.Cut(header.APIVersion, "/"); {
	case header.Kind == "ResourcePolicy" && group == "scheduling.alibabacloud.com":
		err = c.fromResourcePolicy(document)
	case header.Kind == "PlacementPolicy" && group == "placement-policy.scheduling.x-k8s.io":
		err = c.fromPlacementPolicy(document)
	default:
		return nil, fmt.Errorf("%s of %s is neither a ResourcePolicy of scheduling.alibabacloud.com nor a PlacementPolicy of placement-policy.scheduling.x-k8s.io", header.Kind, header.APIVersion)
	}
	if err != nil {
		return nil, err
	}
	policy, errs := subset.Compile(c.spread, field.NewPath("spec"))
	if len(errs) > 0 {
		return nil, fmt.Errorf("the converted WorkloadSpread is not valid; correct the policy: %w", errs.ToAggregate())
	}
	for _, warning := range policy.Warnings {
		c.note("%s", warning)
	}
	return c, nil
}

// decode reads a policy. It notes fields that the type does not have.
func (c *conversion) decode(document []byte, into any) error {
	if err := yaml.UnmarshalStrict(document, into); err == nil {
		return nil
	} else if !strings.Contains(err.Error(), "unknown field") {
		return err
	} else {
		c.note("ignored a field that such a policy does not have: %s", strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: json: "))
	}
	return yaml.Unmarshal(document, into)
}

func (c *conversion) print(w io.Writer) error {
	encoded, err := yaml.Marshal(struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        map[string]string          `json:"metadata"`
		Spec            v1beta1.WorkloadSpreadSpec `json:"spec"`
	}{c.spread.TypeMeta, nameOf(c.spread), c.spread.Spec})
	if err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString("---\n")
	for _, note := range c.notes {
		text.WriteString("# " + strings.ReplaceAll(note, "\n", "\n# ") + "\n")
	}
	text.Write(encoded)
	_, err = io.WriteString(w, text.String())
	return err
}

func nameOf(spread *v1beta1.WorkloadSpread) map[string]string {
	name := map[string]string{"name": spread.Name}
	if spread.Namespace != "" {
		name["namespace"] = spread.Namespace
	}
	return name
}

// in is a requirement of node labels.
func in(key string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}
