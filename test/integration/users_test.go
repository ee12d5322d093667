package integration

import (
	"context"
	"fmt"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Who may view or edit a namespace may do the same with Berth's objects there. Nobody may write their statuses.
func TestTheRolesOfUsersIncludeBerthsKinds(t *testing.T) {
	ns := namespace(t)
	for role, user := range map[string]string{"view": "viewer", "edit": "editor"} {
		binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}}
		if _, err := the.Client.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	may := func(ctx context.Context, user, verb, group, resource, subresource string) (bool, error) {
		review, err := the.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: ns, Verb: verb, Group: group, Resource: resource, Subresource: subresource},
		}}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, err
	}
	for resource, group := range map[string]string{"workloadspreads": "apps.kruise.io", "uniteddeployments": "apps.kruise.io", "podunavailablebudgets": "policy.kruise.io"} {
		for _, tc := range []struct {
			user, verb, subresource string
			want                    bool
		}{
			{"viewer", "list", "", true}, {"viewer", "create", "", false}, {"editor", "watch", "", true}, {"editor", "patch", "", true}, {"editor", "delete", "", true},
			{"editor", "patch", "status", false}, {"editor", "update", "status", false}, {"stranger", "list", "", false},
		} {
			// The controller manager adds what a role includes a little after the role.
			if err := the.WaitFor(t.Context(), fmt.Sprintf("whether %s may %s %s %s", tc.user, tc.verb, resource, tc.subresource), func(ctx context.Context) (string, error) {
				got, err := may(ctx, tc.user, tc.verb, group, resource, tc.subresource)
				if err != nil || got == tc.want {
					return "", err
				}
				return fmt.Sprintf("it is %t", got), nil
			}); err != nil {
				t.Error(err)
			}
		}
	}
}
