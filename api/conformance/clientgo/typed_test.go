package clientgo

import (
	"testing"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// TestTyped writes every kind with the typed client, whose bodies are protobuf.
func TestTyped(t *testing.T) {
	w := newWorld(t)
	for _, content := range []string{"application/vnd.kubernetes.protobuf", "application/json"} {
		config := *w.config
		config.ContentType = content
		config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
		client, err := kubernetes.NewForConfig(&config)
		if err != nil {
			t.Fatal(err)
		}
		name := map[bool]string{true: "protobuf", false: "json"}[content != "application/json"]
		t.Run(name, func(t *testing.T) {
			ns := w.namespace(t, "typed-"+name)
			t.Run("service", func(t *testing.T) { typedService(t, client, ns) })
			t.Run("endpointslice", func(t *testing.T) { typedSlice(t, client, ns) })
			t.Run("others", func(t *testing.T) { typedOthers(t, client, ns) })
			t.Run("delete", func(t *testing.T) { typedDelete(t, client, ns) })
		})
	}
}

func typedService(t *testing.T, client kubernetes.Interface, ns string) {
	ctx, services := t.Context(), client.CoreV1().Services(ns)
	made, err := services.Create(ctx, &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "ünïcödé"}},
		Spec: core.ServiceSpec{
			Type:            core.ServiceTypeNodePort,
			Selector:        map[string]string{"app": "web"},
			SessionAffinity: core.ServiceAffinityClientIP,
			Ports: []core.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "named", Port: 81, TargetPort: intstr.FromString("alt"), Protocol: core.ProtocolUDP},
			},
		},
	}, meta.CreateOptions{FieldManager: "typed"})
	if err != nil {
		t.Fatal(err)
	}
	check(t,
		expect("an address was given", made.Spec.ClusterIP != "", true),
		expect("a node port was given", made.Spec.Ports[0].NodePort >= 30000, true),
		expect("target port by name", made.Spec.Ports[1].TargetPort.StrVal, "alt"),
		expect("timeout", *made.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds, int32(10800)),
		expect("annotation", made.Annotations["note"], "ünïcödé"),
		expect("manager", made.ManagedFields[0].Manager, "typed"),
	)
	got, err := services.Get(ctx, "web", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("version", got.ResourceVersion, made.ResourceVersion), expect("uid", got.UID, made.UID))

	// Several writers of one object: all succeed, by trying again.
	for range 3 {
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			s, err := services.Get(ctx, "web", meta.GetOptions{})
			if err != nil {
				return err
			}
			s.Labels["more"] += "x"
			_, err = services.Update(ctx, s, meta.UpdateOptions{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := services.Update(ctx, got, meta.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v, want a conflict", err)
	}
	latest, err := services.Get(ctx, "web", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	latest.Labels["not"] = "written"
	latest.Status.Conditions = []meta.Condition{{Type: "Tried", Status: meta.ConditionTrue, Reason: "Test", LastTransitionTime: meta.Now()}}
	latest.Spec.Ports[0].Port = 8888
	updated, err := services.UpdateStatus(ctx, latest, meta.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("port after a status update", updated.Spec.Ports[0].Port, 80), expect("label", updated.Labels["more"], "xxx"))
	found := false
	for _, c := range updated.Status.Conditions {
		found = found || c.Type == "Tried"
	}
	check(t, expect("condition is there", found, true))

	patched, err := services.Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{"spec":{"ports":[{"port":81,"targetPort":9}]}}`), meta.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("patched", patched.Spec.Ports[1].TargetPort.IntVal, 9), expect("kept", patched.Spec.Ports[0].Name, "http"))
	applied, err := services.Apply(ctx, apply.Service("web", ns).WithLabels(map[string]string{"applied": "yes"}), meta.ApplyOptions{FieldManager: "applier"})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("applied", applied.Labels["applied"], "yes"), expect("kept", applied.Labels["app"], "web"))
	_, err = services.Apply(ctx, apply.Service("web", ns).WithLabels(map[string]string{"app": "other"}), meta.ApplyOptions{FieldManager: "applier"})
	if !apierrors.IsConflict(err) {
		t.Errorf("apply to somebody else's label: %v, want a conflict", err)
	}

	dry, err := services.Create(ctx, &core.Service{ObjectMeta: meta.ObjectMeta{GenerateName: "dry-"}, Spec: core.ServiceSpec{Ports: []core.ServicePort{{Port: 80}}}},
		meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := services.Get(ctx, dry.Name, meta.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what a dry run made: %v, want not found", err)
	}
	_, err = services.Create(ctx, &core.Service{ObjectMeta: meta.ObjectMeta{Name: "bad"}, Spec: core.ServiceSpec{Ports: []core.ServicePort{{Port: -1}}}}, meta.CreateOptions{})
	if !apierrors.IsInvalid(err) || !apierrors.HasStatusCause(err, meta.CauseTypeFieldValueInvalid) {
		t.Errorf("port -1: %v, want invalid, with a cause", err)
	}
}

func typedSlice(t *testing.T, client kubernetes.Interface, ns string) {
	ctx, slices := t.Context(), client.DiscoveryV1().EndpointSlices(ns)
	yes, port, proto, name, node, zone := true, int32(8080), core.ProtocolTCP, "http", "gw1", "zone-a"
	made, err := slices.Create(ctx, &discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{GenerateName: "web-", Labels: map[string]string{discovery.LabelServiceName: "web"}},
		AddressType: discovery.AddressTypeIPv4,
		Endpoints: []discovery.Endpoint{{
			Addresses:  []string{"10.180.0.1"},
			Conditions: discovery.EndpointConditions{Ready: &yes, Serving: &yes},
			NodeName:   &node, Zone: &zone,
			TargetRef: &core.ObjectReference{Kind: "Pod", Name: "p", Namespace: ns, UID: "u"},
			Hints:     &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "zone-a"}}},
		}},
		Ports: []discovery.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := made.Endpoints[0]
	check(t,
		expect("address", e.Addresses[0], "10.180.0.1"), expect("ready", *e.Conditions.Ready, true), expect("node", *e.NodeName, node),
		expect("hint", e.Hints.ForZones[0].Name, zone), expect("target", e.TargetRef.Name, "p"), expect("port", *made.Ports[0].Port, port),
		expect("terminating is unknown", e.Conditions.Terminating == nil, true),
	)
	list, err := slices.List(ctx, meta.ListOptions{LabelSelector: discovery.LabelServiceName + "=web"})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("slices of web", len(list.Items) >= 1, true))
}

func typedOthers(t *testing.T, client kubernetes.Interface, ns string) {
	ctx := t.Context()
	now, me, seconds := meta.NowMicro(), "me", int32(15)
	lease, err := client.CoordinationV1().Leases(ns).Create(ctx, &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Name: "l"},
		Spec:       coordination.LeaseSpec{HolderIdentity: &me, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("renewed", lease.Spec.RenewTime.UnixMicro(), now.UnixMicro()))

	secret, err := client.CoreV1().Secrets(ns).Create(ctx, &core.Secret{ObjectMeta: meta.ObjectMeta{Name: "s"}, Data: map[string][]byte{"k": {0, 1, 255}}}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("secret", string(secret.Data["k"]), "\x00\x01\xff"), expect("type", secret.Type, core.SecretTypeOpaque))
	cm := configMap("c", "1")
	cm.BinaryData = map[string][]byte{"b": {7}}
	if cm, err = client.CoreV1().ConfigMaps(ns).Create(ctx, cm, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	check(t, expect("binary", cm.BinaryData["b"][0], 7))

	ref := core.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: ns, Name: "web"}
	if _, err := client.EventsV1().Events(ns).Create(ctx, &events.Event{
		ObjectMeta: meta.ObjectMeta{Name: "e"}, EventTime: now, ReportingController: "test", ReportingInstance: "t-1",
		Action: "Testing", Reason: "Tested", Regarding: ref, Note: "It was.", Type: core.EventTypeNormal,
	}, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event, err := client.CoreV1().Events(ns).Get(ctx, "e", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("message", event.Message, "It was."), expect("object", event.InvolvedObject.Name, "web"))
	if _, err := client.CoreV1().Events(ns).Create(ctx, &core.Event{
		ObjectMeta: meta.ObjectMeta{Name: "f"}, InvolvedObject: ref, Reason: "Old", Message: "As ever.", Type: core.EventTypeWarning,
		Source: core.EventSource{Component: "test"}, FirstTimestamp: meta.Now(), LastTimestamp: meta.Now(), Count: 2,
	}, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	if _, err := client.CoreV1().Endpoints(ns).Create(ctx, &core.Endpoints{
		ObjectMeta: meta.ObjectMeta{Name: "manual"},
		Subsets:    []core.EndpointSubset{{Addresses: []core.EndpointAddress{{IP: "10.180.0.9"}}, Ports: []core.EndpointPort{{Port: 80}}}},
	}, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, meta.ListOptions{FieldSelector: "metadata.name=gw1"})
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("nodes called gw1", len(nodes.Items), 1))
	if _, err := client.CoreV1().Pods(ns).List(ctx, meta.ListOptions{}); err != nil {
		t.Error(err)
	}
}

func typedDelete(t *testing.T, client kubernetes.Interface, ns string) {
	ctx, maps := t.Context(), client.CoreV1().ConfigMaps(ns)
	make := func(name string) *core.ConfigMap {
		t.Helper()
		made, err := maps.Create(ctx, configMap(name, "1"), meta.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	made := make("one")
	wrong, old, background, grace := types.UID("wrong"), "1", meta.DeletePropagationBackground, int64(0)
	if err := maps.Delete(ctx, "one", meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &wrong}}); !apierrors.IsConflict(err) {
		t.Errorf("delete of another uid: %v, want a conflict", err)
	}
	if err := maps.Delete(ctx, "one", meta.DeleteOptions{Preconditions: &meta.Preconditions{ResourceVersion: &old}}); !apierrors.IsConflict(err) {
		t.Errorf("delete of another version: %v, want a conflict", err)
	}
	if err := maps.Delete(ctx, "one", meta.DeleteOptions{DryRun: []string{meta.DryRunAll}}); err != nil {
		t.Error(err)
	}
	options := meta.DeleteOptions{
		Preconditions:     &meta.Preconditions{UID: &made.UID, ResourceVersion: &made.ResourceVersion},
		PropagationPolicy: &background, GracePeriodSeconds: &grace,
	}
	if err := maps.Delete(ctx, "one", options); err != nil {
		t.Error(err)
	}
	if err := maps.Delete(ctx, "one", meta.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("delete again: %v, want not found", err)
	}
	make("two")
	make("three")
	if err := maps.DeleteCollection(ctx, meta.DeleteOptions{}, meta.ListOptions{FieldSelector: "metadata.name=two"}); err != nil {
		t.Error(err)
	}
	if _, err := maps.Get(ctx, "three", meta.GetOptions{}); err != nil {
		t.Errorf("what the collection did not select: %v", err)
	}
	if _, err := maps.Get(ctx, "two", meta.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what the collection selected: %v", err)
	}
}
