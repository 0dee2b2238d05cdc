package annotation

import (
	"fmt"
	"strings"
)

// introduction is the page of the manual up to the table.
const introduction = "# svcctl-annotations(7)" + `

## NAME

annotations - what each annotation does here

## SYNOPSIS

    svcctl explain annotations
    svcctl explain annotations NAME

## DESCRIPTION

Annotations are how a Service asks a load balancer for what its fields cannot say, and each cloud has
its own. This page is printed from the table that the program follows. An effect is one of these:

| effect | meaning |
|---|---|
| acts | it does what it says; see below for a value that it cannot have |
| kept | it informs people or other programs, and is kept silently |
| named | it has no effect: a warning says so, and what to do instead; in the answer to whoever applies it, in ` + "`svcctl status`" + `, and as an Event |
| refused | what it asks for is not given, and what would be dangerous without it is not served: that is a problem of the Service |

An annotation of another domain than those of this page is kept: with a note to whoever applies it if its key is about load
balancers, else silently. A key that ends in
` + "`*`" + ` stands for all that begin like it and have no row of their own. Annotations about load balancers, as
internal ones, have no effect on Services of another type than LoadBalancer, which a warning says; those about TLS hold on
every type.

### Wrong values

Whatever can be said of an annotation by the object alone is said to the client that writes it. A value that an
annotation of svcctl cannot have is refused (422), and so is a key of ` + "`svcctl.io/`" + ` that does not exist, or not on objects
of that kind. About the annotations of clouds, and about those without an effect on this object, there is a warning, which
kubectl shows too. ` + "`svcctl validate`" + `, ` + "`svcctl plan`" + ` and ` + "`svcctl status`" + ` report the same; a file with a value that is refused keeps
its last good content, unless its value asks for TLS or restricts clients: then what it is about is not served. A value
that an object was stored with by an earlier version does not keep the rest of the object from being changed.

### Internal load balancers

A load balancer that asks to be internal has its IP from a ` + "`--load-balancer-internal-pool`" + `. What lies in
such a pool is reached from inside only, whoever has it: by the box itself, by ` + "`--cluster-cidr`" + `, and by
the prefixes and interfaces of ` + "`--load-balancer-internal-from`" + `. All others get no answer, on any port, and
not to a ping. So it is with the node ports of such a Service. Its source ranges hold besides. Its
cluster IP is as every other one. External IPs outside of internal pools are not served.

Without an internal pool the Service gets no IP, and a problem names the flag: an address that
everybody reaches is never given, and one that it had before it got the annotation is taken back. When the
annotation goes, the Service moves to an IP of the other pools, unless it asks for the internal one by
name. A value that is none of those in the table counts as internal, with a warning.

A prefix as the value of ` + "`aws-load-balancer-internal`" + ` says who may connect where the Service has no source
ranges.

### TLS

TLS is ended with certificates from Secrets ([relay](../relay.md)). A TCP port that asks for one of a cloud's
store would be passed through in the clear, so it is not served, on none of the Service's addresses; its other
ports are. An empty certificate asks for TLS too, and a list of ports with an entry that is no TCP port
of the Service may mean each of the others ([relay](../relay.md)). When a live Service gets such an annotation, new connections to the port are refused and open ones
end as they would. ` + "`svcctl.io/tls-secret`" + `, for all ports or for one, is what to do about that: it wins over
the annotations of clouds. So does ` + "`aws-load-balancer-ssl-cert: secret:NAME`" + `. Without ` + "`ssl-ports`" + ` a
certificate of AWS is about all TCP ports.

### Lists of clients

An annotation that names a list of clients which is kept in a cloud (security groups, access lists)
cannot be followed. Its load balancer IPs let nobody in until ` + "`spec.loadBalancerSourceRanges`" + ` says who may.
`

// ending is the page behind the table.
const ending = `
## EXAMPLES

A load balancer for the inside, as on AWS, Google Cloud or anywhere else:

` + "```" + `console
svcctl serve --manifests DIR --load-balancer-internal-pool 10.20.0.0/24 --load-balancer-internal-from 10.0.0.0/8
` + "```" + `

` + "```" + `yaml
kind: Service
metadata:
  name: intranet
  annotations:
    service.beta.kubernetes.io/aws-load-balancer-internal: "true"
` + "```" + `

What does this one do?

` + "```" + `sh
svcctl explain annotations service.beta.kubernetes.io/aws-load-balancer-ssl-cert
` + "```" + `

## BUGS

A list of the annotations of clouds is never complete: what has their prefix and is not known is named
in a warning too.

## SEE ALSO

[services](../services.md), [allocation](../allocation.md), [connections](../connections.md), [explain](../explain.md)
`

// manual is the page of the manual, in Markdown.
func manual() string {
	var b strings.Builder
	b.WriteString(introduction)
	of := ""
	for i := range Table() {
		r := &Table()[i]
		if r.Of != of {
			of = r.Of
			fmt.Fprintf(&b, "\n### %s\n\n| annotation | effect | what it does here |\n|---|---|---|\n", of)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", cell("`"+r.Key+"`"+r.on()), r.Effect, cell(r.does()))
	}
	return b.String() + ending
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// on returns the subject of a row, if it is not annotations of Services.
func (r *Row) on() string {
	var words []string
	if r.Label {
		words = append(words, "label")
	}
	if r.Kinds != nil {
		words = append(words, "of "+strings.Join(r.Kinds, ", "))
	}
	if words == nil {
		return ""
	}
	return " (" + strings.Join(words, " ") + ")"
}

// does describes an annotation, with its values and the page that tells more.
func (r *Row) does() string {
	text := r.Text
	if r.Values != "" {
		text += ". Values: " + r.Values
	}
	if r.Page != "" {
		text += ". See [" + r.Page + "](../" + r.Page + ".md)"
	}
	return text
}
