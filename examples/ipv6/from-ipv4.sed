# The other examples for a box without IPv4: sed -E -f examples/ipv6/from-ipv4.sed FILE
s|10\.96\.0\.0/16|fd00:10:96::/112|g
/^ *- 10\.96\.0\./d
s/10\.96\.0\.([0-9]+)/fd00:10:96::\1/g
s/10\.1\.([0-9]+)\.([0-9]+)/fd00:1:\1::\2/g
s/10\.244\.1\.([0-9]+)/fd00:244::\1/g
s|10\.20\.0\.0/28|fd00:20::/124|g
s|10\.0\.0\.0/8|fd00::/8|g
s|198\.51\.100\.0/28|2001:db8:198::/124|g
s/198\.51\.100\.([0-9]+)/2001:db8:198::\1/g
s/192\.0\.2\.([0-9]+)/2001:db8::\1/g
s/203\.0\.113\.0\/24/2001:db8:203::\/48/g
s/addressType: IPv4/addressType: IPv6/
s/ipFamilyPolicy: .*/ipFamilyPolicy: SingleStack/
s/ipFamilies: .*/ipFamilies: [IPv6]/
