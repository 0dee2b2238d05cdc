package gateway

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	v1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/apis/v1beta1"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
	"sigs.k8s.io/gateway-api/conformance/utils/flags"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// Test940 runs the suite with the features that the GatewayClass claims. The flags of the suite follow -args.
func Test940_the_conformance_tests_of_the_Gateway_API_pass(t *testing.T) {
	log.SetLogger(zap.New(zap.WriteTo(os.Stdout), zap.UseDevMode(true)))
	_, cfg, a := newCluster(t)
	client, err := ctrl.New(cfg, ctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, add := range []func() error{
		func() error { return v1.Install(client.Scheme()) },
		func() error { return v1beta1.Install(client.Scheme()) },
		func() error { return extensions.AddToScheme(client.Scheme()) },
	} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	version, err := exec.Command(a.Program, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	address := func(text string) v1.GatewaySpecAddress {
		kind := v1.IPAddressType
		return v1.GatewaySpecAddress{Type: &kind, Value: text}
	}
	report, err := filepath.Abs("../../../bin/conformance/gateway-report.yaml")
	if err != nil {
		t.Fatal(err)
	}
	options := suite.ConfigurableOptions{
		GatewayClassName: "svcctl", CleanupBaseResources: true, CleanupTestResources: true, Mode: flags.DefaultMode,
		ConformanceProfiles:      []suite.ConformanceProfileName{suite.GatewayTCPConformanceProfileName, suite.GatewayUDPConformanceProfileName, suite.GatewayTLSConformanceProfileName},
		UsableNetworkAddresses:   []v1.GatewaySpecAddress{address("198.51.100.40")},
		UnusableNetworkAddresses: []v1.GatewaySpecAddress{address("203.0.113.77")},
		ReportOutputPath:         report,
		Implementation: confv1.Implementation{
			Organization: "svcctl", Project: "svcctl", URL: "https://svcctl.io", Contact: []string{"https://svcctl.io"},
			Version: strings.TrimSpace(strings.TrimPrefix(string(version), "svcctl ")),
		},
		TimeoutConfig: patient(config.DefaultTimeoutConfig()),
	}
	flags.ApplyAll(&options)
	conformance.RunConformanceWithOptions(t, suite.ConformanceOptions{
		ConfigurableOptions: options, Client: client, Clientset: kubernetes.NewForConfigOrDie(cfg), RestConfig: cfg,
		ManifestFS: []fs.FS{&conformance.Manifests},
	})
}

// patient makes all waits for what has to come two minutes at least, as the machine is shared; but that for consistency, of which the suite
// allows 30 seconds.
func patient(c config.TimeoutConfig) config.TimeoutConfig {
	for _, d := range []*time.Duration{
		&c.CreateTimeout, &c.DeleteTimeout, &c.GetTimeout, &c.GatewayMustHaveAddress, &c.GatewayMustHaveCondition, &c.GatewayStatusMustHaveListeners,
		&c.GatewayListenersMustHaveConditions, &c.ListenerSetMustHaveCondition, &c.ListenerSetListenersMustHaveConditions, &c.GWCMustBeAccepted,
		&c.HTTPRouteMustHaveCondition, &c.TLSRouteMustHaveCondition, &c.TCPRouteMustHaveCondition, &c.UDPRouteMustHaveCondition,
		&c.RouteMustHaveParents, &c.NamespacesMustBeReady, &c.LatestObservedGenerationSet, &c.DefaultTestTimeout,
	} {
		*d = max(*d, 2*time.Minute)
	}
	c.DefaultPollInterval = 100 * time.Millisecond
	c.TestIsolation = 0
	return c
}
