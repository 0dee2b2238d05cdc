package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/gateway-api/pkg/consts"

	"svcctl.io/svcctl/api/conformance/served"
)

// A cluster is svcctl with what the suite expects beside it: it answers for Deployments, CustomResourceDefinitions and
// ServiceAccounts (there are none), and passes all else on.
type cluster struct {
	t       *testing.T
	box     *box
	echo    string // the program of the servers
	direct  kubernetes.Interface
	through http.RoundTripper

	mu          sync.Mutex
	deployments map[string]*deployment // by namespace/name
	version     int
}

// A deployment is one of them with its replicas, which end with it.
type deployment struct {
	*apps.Deployment
	end  context.CancelFunc
	done sync.WaitGroup
}

// newCluster starts svcctl and returns it with the configuration of its clients, who come over the socket.
func newCluster(t *testing.T, flags ...string) (*cluster, *rest.Config, *served.Appliance) {
	t.Helper()
	c := &cluster{t: t, box: newBox(t), deployments: map[string]*deployment{}}
	c.echo = served.Build(t, "echo-basic", ".", "sigs.k8s.io/gateway-api/conformance/echo-basic")
	a := c.box.svcctl(t, flags...)
	config := &rest.Config{Host: "http://svcctl", QPS: -1, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", a.Socket)
	}}
	c.direct = kubernetes.NewForConfigOrDie(config)
	wrapped := rest.CopyConfig(config)
	wrapped.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &transport{c, rt} })
	t.Cleanup(func() {
		c.mu.Lock()
		all := c.deployments
		c.deployments = map[string]*deployment{}
		c.mu.Unlock()
		for _, d := range all {
			d.end()
			d.done.Wait()
		}
	})
	return c, wrapped, a
}

// A transport is that of one client.
type transport struct {
	*cluster
	rest http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (tr *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch path := strings.Join(parts, "/"); {
	case path == "apis":
		return tr.groups(r)
	case path == "apis/apps/v1":
		return answer(r, http.StatusOK, &meta.APIResourceList{
			TypeMeta: meta.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "apps/v1", APIResources: []meta.APIResource{
				{Name: "deployments", SingularName: "deployment", Namespaced: true, Kind: "Deployment", Verbs: meta.Verbs{"create", "delete", "get", "list", "patch", "update"}},
			}})
	case path == "apis/apiextensions.k8s.io/v1":
		return answer(r, http.StatusOK, &meta.APIResourceList{
			TypeMeta: meta.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "apiextensions.k8s.io/v1", APIResources: []meta.APIResource{
				{Name: "customresourcedefinitions", SingularName: "customresourcedefinition", Kind: "CustomResourceDefinition", Verbs: meta.Verbs{"list"}},
			}})
	case path == "apis/apiextensions.k8s.io/v1/customresourcedefinitions":
		return answer(r, http.StatusOK, &extensions.CustomResourceDefinitionList{
			TypeMeta: meta.TypeMeta{Kind: "CustomResourceDefinitionList", APIVersion: "apiextensions.k8s.io/v1"},
			Items: []extensions.CustomResourceDefinition{{ObjectMeta: meta.ObjectMeta{
				Name:        "gateways.gateway.networking.k8s.io",
				Annotations: map[string]string{consts.BundleVersionAnnotation: consts.BundleVersion, consts.ChannelAnnotation: "standard"},
			}}}})
	case len(parts) == 5 && parts[0] == "api" && parts[4] == "serviceaccounts":
		return answer(r, http.StatusOK, &core.ServiceAccountList{TypeMeta: meta.TypeMeta{Kind: "ServiceAccountList", APIVersion: "v1"}})
	case strings.HasPrefix(path, "apis/apps/v1/namespaces/") && len(parts) >= 6 && parts[5] == "deployments":
		name := ""
		if len(parts) > 6 {
			name = parts[6]
		}
		return tr.deployment(r, parts[4], name)
	}
	return tr.rest.RoundTrip(r)
}

// groups adds two groups to those of svcctl, in the plain form.
func (tr *transport) groups(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "application/json")
	response, err := tr.rest.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	defer response.Body.Close()
	var list meta.APIGroupList
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, err
	}
	for _, name := range []string{"apps", "apiextensions.k8s.io"} {
		version := meta.GroupVersionForDiscovery{GroupVersion: name + "/v1", Version: "v1"}
		list.Groups = append(list.Groups, meta.APIGroup{Name: name, Versions: []meta.GroupVersionForDiscovery{version}, PreferredVersion: version})
	}
	return answer(r, http.StatusOK, &list)
}

// deployment answers a request for a Deployment.
func (tr *transport) deployment(r *http.Request, namespace, name string) (*http.Response, error) {
	if name == "" && r.Method != http.MethodPost {
		return nil, fmt.Errorf("%s %s: not answered by this harness", r.Method, r.URL)
	}
	body := &apps.Deployment{}
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, body); err != nil {
			return nil, err
		}
		name, body.Namespace = body.Name, namespace
		body.TypeMeta = meta.TypeMeta{Kind: "Deployment", APIVersion: "apps/v1"}
	}
	key := namespace + "/" + name
	tr.mu.Lock()
	defer tr.mu.Unlock()
	known := tr.deployments[key]
	of := schema.GroupResource{Group: "apps", Resource: "deployments"}
	switch {
	case r.Method == http.MethodPost && known != nil:
		status := apierrors.NewAlreadyExists(of, name).Status()
		return answer(r, int(status.Code), &status)
	case r.Method != http.MethodPost && known == nil:
		status := apierrors.NewNotFound(of, name).Status()
		return answer(r, int(status.Code), &status)
	case r.Method == http.MethodPost || r.Method == http.MethodPut:
		if known != nil {
			known.end()
		}
		tr.version++
		body.ResourceVersion, body.UID = fmt.Sprint(tr.version), "d"
		known = tr.start(body)
		tr.deployments[key] = known
		return answer(r, http.StatusOK, known.Deployment)
	case r.Method == http.MethodGet:
		return answer(r, http.StatusOK, known.Deployment)
	case r.Method == http.MethodDelete:
		known.end()
		delete(tr.deployments, key)
		return answer(r, http.StatusOK, &meta.Status{TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"})
	}
	return nil, fmt.Errorf("%s %s: not answered by this harness", r.Method, r.URL)
}

// start starts the replicas of a Deployment.
func (c *cluster) start(d *apps.Deployment) *deployment {
	ctx, end := context.WithCancel(context.Background())
	running := &deployment{Deployment: d, end: end}
	replicas := 1
	if d.Spec.Replicas != nil {
		replicas = int(*d.Spec.Replicas)
	}
	for i := range replicas {
		running.done.Go(func() {
			name := fmt.Sprintf("%s-%s-%d", d.Name, d.ResourceVersion, i)
			if err := c.replica(ctx, d, name); err != nil && ctx.Err() == nil {
				c.t.Errorf("Pod %s/%s: %v", d.Namespace, name, err)
			}
		})
	}
	return running
}

// replica runs a server and its Pod until the Deployment ends.
func (c *cluster) replica(ctx context.Context, d *apps.Deployment, name string) error {
	template := d.Spec.Template
	container := template.Spec.Containers[0]
	dir := c.t.TempDir()
	for _, volume := range template.Spec.Volumes {
		if err := c.volume(ctx, d.Namespace, volume, filepath.Join(dir, volume.Name)); err != nil {
			return err
		}
	}
	program, env := c.echo, []string{}
	if strings.Contains(container.Image, "coredns") {
		program, env = os.Args[0], []string{dnsVariable + "=1"}
	}
	for _, e := range container.Env {
		value := e.Value
		switch {
		case e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.name":
			value = name
		case e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.namespace":
			value = d.Namespace
		}
		for _, mount := range container.VolumeMounts {
			if rest, is := strings.CutPrefix(value, mount.MountPath+"/"); is {
				value = filepath.Join(dir, mount.Name, rest)
			}
		}
		env = append(env, e.Name+"="+value)
	}
	server := c.box.process(program, env...)
	if err := server.Start(); err != nil {
		return err
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	addr, err := c.box.attach(server.Process.Pid)
	if err != nil {
		return err
	}
	if err := c.listening(ctx, server, addr); err != nil {
		return err
	}
	pods := c.direct.CoreV1().Pods(d.Namespace)
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: template.Labels}, Spec: core.PodSpec{Containers: []core.Container{{Name: container.Name, Image: container.Image}}},
		Status: core.PodStatus{
			Phase: core.PodRunning, PodIP: addr.String(), PodIPs: []core.PodIP{{IP: addr.String()}},
			Conditions: []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}},
		},
	}
	if _, err := pods.Create(ctx, pod, meta.CreateOptions{}); err != nil {
		return err
	}
	<-ctx.Done()
	if err := pods.Delete(context.Background(), name, meta.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		c.t.Logf("delete the Pod %s/%s: %v", d.Namespace, name, err)
	}
	return nil
}

// listening waits until a server has a socket that listens.
func (c *cluster) listening(ctx context.Context, server *exec.Cmd, _ netip.Addr) error {
	for {
		for _, table := range []string{"tcp6", "tcp", "udp6", "udp"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", server.Process.Pid, table))
			if err != nil {
				return err
			}
			if strings.Count(string(text), "\n") > 1 {
				return nil
			}
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// volume writes the files of a Secret as soon as there is one; other volumes stay empty.
func (c *cluster) volume(ctx context.Context, namespace string, volume core.Volume, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil || volume.Secret == nil {
		return err
	}
	for {
		secret, err := c.direct.CoreV1().Secrets(namespace).Get(ctx, volume.Secret.SecretName, meta.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil {
			for _, item := range volume.Secret.Items {
				if err := os.WriteFile(filepath.Join(dir, item.Path), secret.Data[item.Key], 0o600); err != nil {
					return err
				}
			}
			return nil
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(50 * time.Millisecond): // real time: the pace of asking
		return nil
	}
}

// answer is a response with an object in JSON.
func answer(r *http.Request, code int, object any) (*http.Response, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}
