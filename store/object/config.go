package object

import (
	"bytes"
	"cmp"
	"maps"
	"regexp"
	"slices"
)

// ConfigMap is core/v1 ConfigMap. Nothing here reads its content.
type ConfigMap struct {
	TypeMeta
	Metadata   ObjectMeta        `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
	Immutable  *bool             `json:"immutable,omitempty"`
}

// Secret is core/v1 Secret. Its content is for relayed ports with TLS; nothing else reads it.
type Secret struct {
	TypeMeta
	Metadata ObjectMeta        `json:"metadata"`
	Data     map[string][]byte `json:"data,omitempty"`
	// StringData is for writing only: Default moves it into Data.
	StringData map[string]string `json:"stringData,omitempty"`
	Type       string            `json:"type,omitempty"`
	Immutable  *bool             `json:"immutable,omitempty"`
}

// secretOpaque is the type of a Secret that does not say one.
const secretOpaque = "Opaque"

// The type of a Secret with a certificate, and its keys (core/v1 SecretTypeTLS).
const (
	SecretTLS = "kubernetes.io/tls"
	TLSCert   = "tls.crt"
	TLSKey    = "tls.key"
)

const (
	maxDataBytes = 1 << 20 // core.MaxSecretSize, of all values of a ConfigMap or Secret
	maxDataKey   = 253     // validation.DNS1123SubdomainMaxLength

	dataKey     = "[-._a-zA-Z0-9]+"
	dataKeyText = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' " +
		"(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '" + dataKey + "')"
)

var dataKeyRE = regexp.MustCompile("^" + dataKey + "$")

func (o *ConfigMap) GetMeta() *ObjectMeta { return &o.Metadata }
func (o *Secret) GetMeta() *ObjectMeta    { return &o.Metadata }

func (o *Secret) setDefaults() {
	o.Type = cmp.Or(o.Type, secretOpaque)
	o.MoveStringData()
}

// MoveStringData moves the values of StringData into Data.
func (o *Secret) MoveStringData() {
	if len(o.StringData) > 0 && o.Data == nil {
		o.Data = map[string][]byte{}
	}
	for key, value := range o.StringData {
		o.Data[key] = []byte(value)
	}
	o.StringData = nil
}

func (o *ConfigMap) validate(previous Object) Errors {
	old, _ := previous.(*ConfigMap)
	data, binary := root("data"), root("binaryData")
	errs := slices.Concat(validateDataKeys(data, o.Data), validateDataKeys(binary, o.BinaryData))
	size := 0
	for key, value := range o.Data {
		size += len(value)
		if _, both := o.BinaryData[key]; both {
			errs = append(errs, invalid(data.key(key), key, "duplicate of key present in binaryData")...)
		}
	}
	for _, value := range o.BinaryData {
		size += len(value)
	}
	if size > maxDataBytes {
		errs = append(errs, tooLong(path{}, maxDataBytes)...)
	}
	if old == nil || !Deref(old.Immutable) {
		return errs
	}
	return slices.Concat(errs, validateKeptImmutable(o.Immutable), unlessEqual(data, maps.Equal(o.Data, old.Data)),
		unlessEqual(binary, maps.EqualFunc(o.BinaryData, old.BinaryData, bytes.Equal)))
}

func (o *Secret) validate(previous Object) Errors {
	old, _ := previous.(*Secret)
	data := root("data")
	errs := validateDataKeys(data, o.Data)
	size := 0
	for _, value := range o.Data {
		size += len(value)
	}
	if size > maxDataBytes {
		errs = append(errs, tooLong(data, maxDataBytes)...)
	}
	if o.Type == SecretTLS {
		for _, key := range []string{TLSCert, TLSKey} {
			if _, has := o.Data[key]; !has {
				errs = append(errs, required(data.key(key), "")...)
			}
		}
	}
	if old == nil {
		return errs
	}
	if o.Type != old.Type {
		errs = append(errs, invalid(root("type"), o.Type, immutableText)...)
	}
	if !Deref(old.Immutable) {
		return errs
	}
	return slices.Concat(errs, validateKeptImmutable(o.Immutable), unlessEqual(data, maps.EqualFunc(o.Data, old.Data, bytes.Equal)))
}

const immutableSetText = "field is immutable when `immutable` is set"

func validateKeptImmutable(immutable *bool) Errors {
	return unlessEqual(root("immutable"), Deref(immutable))
}

func unlessEqual(p path, equal bool) Errors {
	if equal {
		return nil
	}
	return forbidden(p, immutableSetText)
}

func validateDataKeys[V any](p path, data map[string]V) Errors {
	var errs Errors
	for _, key := range slices.Sorted(maps.Keys(data)) {
		problems := matchProblems(key, maxDataKey, dataKeyRE, dataKeyText)
		if key == "." || key == ".." {
			problems = append(problems, "must not be '"+key+"'")
		}
		errs = append(errs, invalidFor(p.key(key), key, problems)...)
	}
	return errs
}
