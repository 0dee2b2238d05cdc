// Package served runs the tests of a module in a network namespace of their own and
// serves them an appliance there: the program svcctl, built from this checkout, with its
// API on a TLS port and a kubeconfig for it.
//
// It is for the modules beside it, which try the API with other people's clients. It
// knows the program by its command line alone, and depends on nothing but the standard
// library: what a client's module needs in which version is that module's business.
//
// The namespace has a loopback interface and one called ext0 with 192.0.2.1/24 and
// 2001:db8::1/64. There can be one running appliance at a time. Tests that do not run as
// root are skipped loudly, or fail when SVCCTL_REQUIRE_PRIVILEGED=1 is set.
//
//	func TestMain(m *testing.M) { served.Main(m) }
//
//	func TestList(t *testing.T) {
//		a := served.New(t)
//		a.Start()
//		run("kubectl", "--kubeconfig", a.Kubeconfig, "get", "services")
//	}
package served
