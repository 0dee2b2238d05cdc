package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"

	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/store"
)

// fleetPattern, compiled when it is needed, is a DNS label, which is a part of etcd's keys.
var fleetPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`) })

// validateFleet looks at what belongs to --fleet.
func (c *Config) validateFleet(v *validation) {
	if c.Fleet.Name == "" {
		if c.Fleet.LeafWrites {
			v.add("leaf-writes", "true", "it has no effect without --fleet: name the fleet, or leave it out")
		}
		for flag, value := range map[string]string{
			"etcd-cacert": c.Fleet.CACert, "etcd-cert": c.Fleet.Cert, "etcd-key": c.Fleet.Key, "fleet-key-file": c.Fleet.KeyFile,
			"core-cacert": c.Fleet.CoreCACert, "core-cert": c.Fleet.CoreCert, "core-key": c.Fleet.CoreKey, "leaf-cacert": c.Fleet.LeafCACert,
		} {
			if value != "" {
				v.add(flag, value, "it has no effect without --fleet: name the fleet, or leave it out")
			}
		}
		for flag, urls := range map[string][]string{"etcd": c.Fleet.Etcd, "core": c.Fleet.Cores} {
			if len(urls) > 0 {
				v.add(flag, urls[0], "it has no effect without --fleet: name the fleet, or leave it out")
			}
		}
		return
	}
	if !fleetPattern().MatchString(c.Fleet.Name) {
		v.add("fleet", c.Fleet.Name, "it is no name of a fleet: take small letters, digits and dashes, at most 63")
	}
	if c.Fleet.LeafWrites && c.Fleet.LeafCACert == "" {
		v.add("leaf-writes", "true", "it has no effect without --leaf-cacert: name the CA of the leaves, or leave it out")
	}
	if len(c.Fleet.Cores) > 0 {
		c.validateLeaf(v)
		return
	}
	for flag, value := range map[string]string{"core-cacert": c.Fleet.CoreCACert, "core-cert": c.Fleet.CoreCert, "core-key": c.Fleet.CoreKey} {
		if value != "" {
			v.add(flag, value, "it has no effect without --core: name the core boxes, or leave it out")
		}
	}
	if c.Fleet.LeafCACert != "" && c.API.Listen == "" {
		v.add("leaf-cacert", c.Fleet.LeafCACert, "leaves follow this box over TLS: give --listen too, as :6443")
	}
	if len(c.Fleet.Etcd) == 0 {
		v.add("etcd", "", "a fleet keeps its objects in etcd: name its members, as https://etcd1:2379,https://etcd2:2379; a leaf names boxes that follow etcd with --core")
	}
	for _, endpoint := range c.Fleet.Etcd {
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
			v.add("etcd", endpoint, "it is no URL of a member of etcd: write https://HOST:2379, without a path")
		}
	}
	if (c.Fleet.Cert == "") != (c.Fleet.Key == "") {
		v.add("etcd-cert", c.Fleet.Cert, "--etcd-cert and --etcd-key belong together: give both")
	}
	named := map[string]bool{}
	for i, source := range c.ManifestSources() {
		switch {
		case !fleetPattern().MatchString(source.Name):
			v.add("manifests", c.Manifests[i], "in a fleet a directory has a name, which is the same on each box that reads it: write it as NAME=DIR, with small letters, digits and dashes in NAME")
		case strings.Contains(source.Dir, ",rollout="):
			v.add("manifests", c.Manifests[i], "the files of a source come to all boxes at once: write NAME=DIR, and have a pipeline run `svcctl apply --rollout` for what is to come in steps")
		case named[source.Name]:
			v.add("manifests", c.Manifests[i], "two directories of this box are named %s: give one of them another name", source.Name)
		}
		named[source.Name] = true
	}
}

// validateLeaf looks at what belongs to a leaf.
func (c *Config) validateLeaf(v *validation) {
	for flag, value := range map[string]string{
		"etcd-cacert": c.Fleet.CACert, "etcd-cert": c.Fleet.Cert, "etcd-key": c.Fleet.Key, "leaf-cacert": c.Fleet.LeafCACert, "etcd": strings.Join(c.Fleet.Etcd, ","),
	} {
		if value != "" {
			v.add(flag, value, "a box with --core is a leaf: it has no connection to etcd, and no box follows it: leave it out, or leave out --core")
		}
	}
	for _, core := range c.Fleet.Cores {
		u, err := url.Parse(core)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
			v.add("core", core, "it is no URL of the API of a box: write https://HOST:6443, without a path")
		}
	}
	if c.Fleet.CoreCert == "" || c.Fleet.CoreKey == "" {
		v.add("core-cert", c.Fleet.CoreCert, "core boxes identify a leaf by its certificate: give --core-cert and --core-key, of the CA that they have in --leaf-cacert, with the --node-name as common name")
	}
	if len(c.Manifests) > 0 {
		v.add("manifests", c.Manifests[0], "a leaf reads no files for its fleet: give the directory to a core box, or run `svcctl apply`")
	}
}

// IsLeaf reports whether the box follows core boxes.
func (c *Config) IsLeaf() bool { return len(c.Fleet.Cores) > 0 }

// ManifestSource is a directory of manifests.
type ManifestSource struct {
	Name string // in a fleet; otherwise ""
	Dir  string
}

// ManifestSources are the directories of Manifests. In a fleet each is NAME=DIR.
func (c *Config) ManifestSources() []ManifestSource {
	all := make([]ManifestSource, len(c.Manifests))
	for i, text := range c.Manifests {
		if c.Fleet.Name == "" {
			all[i].Dir = text
		} else if name, dir, named := strings.Cut(text, "="); named {
			all[i] = ManifestSource{name, dir}
		} else {
			all[i].Dir = text
		}
	}
	return all
}

// ManifestDirs returns the watched directories, without the names of their sources.
func (c *Config) ManifestDirs() (dirs []string) {
	for _, s := range c.ManifestSources() {
		dirs = append(dirs, s.Dir)
	}
	return dirs
}

// SourcePath returns the name of a file of this box that is the same on all boxes of a fleet; ""
// for a file outside its directories.
func (c *Config) SourcePath(path string) string {
	for _, s := range c.ManifestSources() {
		dir, err := filepath.Abs(s.Dir)
		if err != nil {
			continue
		}
		if relative, within := strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/"); within && s.Name != "" {
			return store.SourcePath(s.Name, relative)
		}
	}
	return ""
}

// NodeOwner owns the Node of this box: in a fleet each box keeps its own.
func (c *Config) NodeOwner() string {
	if c.Fleet.Name == "" {
		return control.NodeOwner
	}
	return control.NodeOwner + "/" + c.NodeName
}

// FleetSettings returns, as JSON, the settings that all boxes of a fleet must have in common: values are
// allocated and documents validated by them.
func (c *Config) FleetSettings() (json.RawMessage, error) {
	text := func(ranges []AddrRange) (all []string) {
		for _, r := range ranges {
			all = append(all, r.String())
		}
		return all
	}
	return json.Marshal(fleetSettings{
		texts(c.Addresses.ClusterIPRanges), fmt.Sprintf("%d-%d", c.Addresses.NodePortRange.First, c.Addresses.NodePortRange.Last), string(c.Addresses.NodePortSpace),
		text(c.Addresses.LoadBalancerPools), text(c.Addresses.InternalPools), string(c.Services.Names), c.Addresses.Allocate == AllocateNever,
	})
}

// fleetSettings are the settings that all boxes of a fleet must have in common. Messages name their flags: a
// bool is set when its flag was given.
type fleetSettings struct {
	ClusterIPs    []string `json:"serviceClusterIPRange" flag:"service-cluster-ip-range"`
	NodePorts     string   `json:"serviceNodePortRange" flag:"service-node-port-range"`
	Space         string   `json:"nodePortSpace" flag:"node-port-space"`
	Pools         []string `json:"loadBalancerPool,omitempty" flag:"load-balancer-pool"`
	InternalPools []string `json:"loadBalancerInternalPool,omitempty" flag:"load-balancer-internal-pool"`
	ServiceNames  string   `json:"serviceNames" flag:"service-names"`
	Pinned        bool     `json:"pinned,omitempty" flag:"allocate never"`
}

// FleetFlags returns the flag of each field of FleetSettings, without dashes.
func FleetFlags() map[string]string {
	flags := map[string]string{}
	for field := range reflect.TypeFor[fleetSettings]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		flags[name] = field.Tag.Get("flag")
	}
	return flags
}

func texts[T fmt.Stringer](list []T) (all []string) {
	for _, one := range list {
		all = append(all, one.String())
	}
	return all
}

// EtcdTLS returns the TLS configuration for etcd over https, CoreTLS that for core boxes. The box's certificate is read again for
// each connection, so that it can be replaced; the CA is read once.
func (f *Fleet) EtcdTLS() (*tls.Config, error) { return clientTLS("etcd", f.CACert, f.Cert, f.Key) }

// CoreTLS is documented at EtcdTLS.
func (f *Fleet) CoreTLS() (*tls.Config, error) {
	return clientTLS("core", f.CoreCACert, f.CoreCert, f.CoreKey)
}

// clientTLS reads the files of flags with a prefix.
func clientTLS(flags, ca, cert, key string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("read --%s-cacert: %w", flags, err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--%s-cacert %s has no certificate in PEM", flags, ca)
		}
	}
	if cert == "" {
		return t, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("read --%s-cert and --%s-key: %w", flags, flags, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return t, nil
}
