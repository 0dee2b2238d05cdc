// Package convert writes manifests of virtual services that were described in another way: by
// flags (`svcctl expose`), or by the configuration of keepalived, ipvsadm, HAProxy or nftlb, and of the
// objects of a cluster (`svcctl import`). It is pure: text in, text out.
//
// A source is read as a whole. A known statement without a counterpart becomes a Loss, a
// comment in the YAML; an unknown one is an Error with its line, and no manifests.
package convert
