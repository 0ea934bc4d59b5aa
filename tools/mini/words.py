"""The words `mini` is taught: everyday groups of classes, everyday synonyms, caption templates and descriptions of a
view.

Pure data. Numbers are positions in the 1000 ImageNet classes; "pets:", "caltech:" and "flowers:" name classes of the
three photo sets.
"""

# name | other names: members. A group's probability is the sum over its members.
GROUPS = """
animal | wild animal: 0-68 70-397 pets:* caltech:#animal
fish: 0-6 389-397 caltech:bass,sea_horse
shark: 2-4
bird | birds: 7-24 80-100 127-146 caltech:emu,flamingo,flamingo_head,ibis,pigeon,rooster
chicken: 7-8 caltech:rooster
songbird | small bird: 10-20
bird of prey: 21-24
parrot: 87-90
water bird: 97-100 127-137
sea bird: 139-146
amphibian: 25-32
salamander: 25-29
frog | toad: 30-32
reptile: 33-50 52-68 caltech:crocodile,crocodile_head,hawksbill
turtle | tortoise: 33-37 caltech:hawksbill
lizard: 38-48
crocodile or alligator: 49-50 caltech:crocodile,crocodile_head
dinosaur: 51 caltech:brontosaurus,stegosaurus
snake | serpent: 52-68
spider: 72-77
insect | bug: 300-326 caltech:ant,butterfly,dragonfly,mayfly
beetle: 300-307
butterfly | moth: 321-326 caltech:butterfly
crustacean | shellfish: 118-126 caltech:crab,crayfish,lobster
crab: 118-121 125 caltech:crab
lobster: 122-123 caltech:lobster
sea creature: 107-109 327-329 caltech:octopus,starfish,nautilus
whale: 147-148
sea mammal: 147-150 caltech:dolphin
pet: 151-268 281-285 pets:*
dog | puppy | hound dog | dogs: 151-268 pets:#dog caltech:dalmatian
hound: 160-177 pets:basset_hound,beagle
terrier: 179-195 199-203 pets:american_pit_bull_terrier, scottish_terrier, staffordshire_bull_terrier,
  wheaten_terrier, yorkshire_terrier
retriever: 205-209
setter: 212-214 pets:english_setter
spaniel: 156 216-221 pets:english_cocker_spaniel
sheepdog: 229-232
poodle: 265-267
corgi: 263-264
schnauzer: 196-198
wolf: 269-271
wild dog: 272-275
fox: 277-280
cat | kitten | house cat | domestic cat | cats: 281-285 pets:#cat caltech:garfield
big cat: 286-293 caltech:leopard,cougar_body,cougar_face,wild_cat
bear: 294-297
rabbit | bunny: 330-332
rodent: 333-338 caltech:beaver
cattle: 345-347
sheep or goat | sheep | goat: 348-350
antelope | deer: 351-353 caltech:gerenuk
monkey: 370-382
ape: 365-369
primate: 365-384
lemur: 383-384
elephant: 101 385-386 caltech:elephant
farm animal: 7-8 341 345-346 348
mammal: 102-106 147-299 330-388 pets:* caltech:beaver, cougar_body, cougar_face, dalmatian, dolphin, elephant,
  gerenuk, hedgehog, kangaroo, leopard, llama, okapi, panda, platypus, rhino, wild_cat
aircraft | plane | flying machine: 404-405 895 caltech:airplane,helicopter
airplane | aeroplane | jet: 404 895 caltech:airplane
boat: 472 484 554 576 625 814 871 914 caltech:ferry,ketch,schooner
ship: 403 510 628 724 780 caltech:ferry,schooner
sailing boat: 484 780 871 914 caltech:ketch,schooner
car | automobile | cars: 436 468 511 609 627 656 661 751 817 caltech:car_side
truck | lorry: 555 569 675 717 864 867
bus: 654 779 874
van: 654 656 675 734
train: 466 547 565 705 820
bicycle | bike: 444 671
motorcycle | scooter: 665 670 caltech:motorbike
vehicle: 407-408 436 444 466 468 511 547 555 561 565 569 573 575 586 609 627 654 656 661 665 670 671 675 705 717 734
  751 757 779 802 803 817 820 829 847 864 866 867 874 caltech:car_side, motorbike
chair | seat: 423 559 765 857 caltech:chair,windsor_chair
table: 532 736
bed: 431 516 520 564
furniture: 423 431 453 493 495 516 520 526 532 548 553 559 564 648 703 765 831 857 894 caltech:chair,windsor_chair
cabinet | cupboard: 493 495 553 648 894
lamp | light: 619 818 846 caltech:lamp,chandelier
clock: 409 530 892
timepiece: 409 530 531 604 826 835 892 caltech:watch
telephone | phone: 487 528 707 caltech:cellphone
computer: 527 590 620 681 caltech:laptop
screen: 664 782 851
camera: 732 759 caltech:camera
keyboard: 508 878
electronic device | gadget: 481-482 485 487 527 590 592 605 620 632 662 664 673 681 713 742 745 754 761 782 848 851
  caltech:cellphone, laptop, camera
guitar: 402 546 caltech:electric_guitar
piano: 579 881 caltech:grand_piano
brass instrument: 513 566 875 caltech:euphonium
musical instrument: 401 402 420 432 486 513 541 546 558 566 577 579 593 594 641 642 683 684 687 699 776 822 875 881
  889 caltech:accordion, electric_guitar, euphonium, grand_piano, mandolin, saxophone
ball: 429 430 522 574 722 768 805 852 890 caltech:soccer_ball
hat: 439 452 515 667 808
helmet: 518 560 715
shoe | footwear: 502 514 630 770 774
coat | jacket: 568 617 869
dress: 578 601 689
skirt: 601 655 689
swimsuit: 445 639 842
sweater | jumper: 474 841
clothing | clothes: 399 400 411 445 459 474 501 568 578 601 608 610 614 617 638 639 652 655 658 689 697 735 775 806
  834 841 842 869 887
tie: 451 457 906
bag: 414 636 728 748
bottle: 440 720 737 898 907
cup | mug: 504 968 caltech:cup
bowl: 659 809
drinking glass: 441 572
jug | pitcher: 725 899 901 caltech:ewer
cooking pot | pan: 521 544 567 909
spoon: 618 910
knife: 499 623
tool: 473 477 491 512 587 596 726 740 783 784 792 caltech:scissors,wrench
gun: 413 763 764 caltech:revolver
weapon: 413 456 471 657 744 763 764 caltech:cannon,revolver
rocket: 657 744 812
kitchen appliance: 505 534 550 651 766 827 859 891
container: 412 427 463 478 492 519 588 756 868 caltech:barrel
wheel: 479 694 739
pen: 418 563 749
office supply: 418 446 563 623 709 710 767 769 caltech:stapler,scissors
fence: 489 716 912
bridge: 821 839 888
tower: 442 437 900 caltech:minaret,pagoda
temple: 663 668 832 caltech:pagoda
building | house: 410 425 437 449 483 497 498 580 624 660 663 668 698 727 743 832 900 915 caltech:minaret,pagoda
shop | store: 415 424 454 467 509 582 788 860 865
roof: 853 858
curtain: 794 854
toy: 850 865 caltech:snoopy,garfield
sports equipment: 416 422 429 430 522 543 574 602 702 722 746 747 752 768 795 805 852 890 caltech:soccer_ball,
  inline_skate
fruit: 948-957 caltech:strawberry
vegetable: 936-946
squash: 939-942
food | meal: 924-965 caltech:pizza,strawberry
bread: 930-932
dessert: 927-929
drink | beverage: 966 967 969
soup: 925-926
pasta: 959
fungus: 991-997
flower | flowers | blossom: 984-986 flowers:* caltech:lotus,sunflower,water_lilly
orchid: 986 flowers:hard-leaved pocket orchid,moon orchid,ruby-lipped cattleya
lily: flowers:tiger lily,peruvian lily,giant white arum lily,fire lily,sword lily,toad lily,canna lily,blackberry lily
iris: flowers:yellow iris,bearded iris
poppy: flowers:corn poppy,californian poppy,tree poppy
dahlia: flowers:orange dahlia,pink-yellow dahlia,bishop of llandaff
thistle: flowers:globe thistle,spear thistle,alpine sea holly
plant: 738 984-990 flowers:* caltech:bonsai,joshua_tree,lotus,sunflower,water_lilly
tree: caltech:bonsai,joshua_tree
landscape | scenery: 970 972 974-980
shore | coast: 975-978
"""

# Everyday names of single ImageNet classes, beside WordNet's lemmas.
SYNONYMS = """
15 robin; 22 eagle; 24 owl; 39 iguana; 49 crocodile; 50 alligator; 97 wild duck; 99 geese; 100 swan; 145 penguin;
150 seal; 207 golden retriever dog; 208 labrador; 235 german shepherd; 247 saint bernard; 254 pug dog; 301 ladybird;
335 squirrel; 339 horse; 344 hippo; 345 cow; 347 buffalo; 354 camel; 338 guinea pig pet; 387 lesser panda;
388 panda; 404 passenger plane; 412 garbage can; 412 dustbin; 412 rubbish bin; 417 hot air balloon; 427 cask;
444 tandem bike; 468 taxi; 468 cab; 487 cell phone; 487 cellphone; 487 smartphone; 508 keyboard of a computer;
527 desktop PC; 549 letter; 555 fire engine; 606 iron; 609 off-road vehicle; 620 laptop; 651 microwave;
664 computer monitor; 665 moped bike; 670 motor scooter; 671 bike for mountains; 679 jewelry; 717 pickup;
748 handbag; 760 fridge; 760 refrigerator; 761 remote; 770 running shoe; 770 trainers; 779 yellow school bus;
812 spaceship; 817 sport car; 831 sofa; 831 couch; 837 dark glasses; 850 stuffed bear; 851 TV; 851 television set;
861 toilet; 889 fiddle; 892 clock on a wall; 895 fighter jet; 914 sailing boat at sea; 919 street sign;
919 road sign; 923 dish; 933 hamburger; 933 burger; 937 broccoli vegetable; 947 toadstool; 948 apple;
948 green apple; 950 orange fruit; 951 lemon fruit; 959 spaghetti; 966 wine; 966 glass of red wine; 967 coffee;
967 cup of coffee; 968 teacup; 970 mountains; 970 mountain peak; 973 reef; 975 lake; 978 seaside; 978 sea shore;
979 hills; 985 daisy flower; 987 sweetcorn; 920 stoplight
"""

CALTECH_ANIMALS = """
leopard,ant,bass,beaver,butterfly,cougar_body,cougar_face,crab,crayfish,crocodile,crocodile_head,dalmatian,dolphin
dragonfly,elephant,emu,flamingo,flamingo_head,gerenuk,hawksbill,hedgehog,ibis,kangaroo,llama,lobster,mayfly
nautilus,octopus,okapi,panda,pigeon,platypus,rhino,rooster,scorpion,sea_horse,starfish,tick,wild_cat
"""

TEMPLATE_PROTOCOL = "a photo of a {}."
TEMPLATES_NEUTRAL = """
a photo of a {}.|a photo of the {}.|a photo of one {}.|a photo of my {}.|a good photo of a {}.
a good photo of the {}.|itap of a {}.|itap of the {}.|itap of my {}.|a {}.|the {}.|{}|{}.|a picture of a {}.
an image of a {}.|a photo of an {}.|an {}.|a photo of a nice {}.|a photo of the nice {}.|a photo of a cool {}.
a photo of some {}.|a photo showing a {}.|this is a photo of a {}.|there is a {} in the photo.|one {}.|my {}.
some {}.
"""
TEMPLATES_KIND = {
    "pets": "a photo of a {}, a type of pet.|a photo of a {}, a type of animal.",
    "flowers": "a photo of a {}, a type of flower.|a photo of a {}, a type of plant.",
    "caltech": "a photo of a {}, a kind of thing.|a photo of a {} on a table.",
}
TEMPLATES_PAIR = """
a photo of a {} and a {}.|a {} and a {}.|a photo of a {} next to a {}.|a {} beside a {}.|a {} with a {}.
a photo of a {} with a {}.
"""

# How a view was made (see photos.py) and the captions that say so.
DESCRIPTIONS = {
    "plain": "a photo of a {}.|a good photo of a {}.|a photo of the {}.",
    "close-up": "a close-up photo of a {}.|a close-up of the {}.|a photo of a {} up close.|"
    "a detail of a {}.|a macro photo of a {}.",
    "cropped": "a cropped photo of a {}.|a cropped photo of the {}.|a photo of part of a {}.|half of a {}.",
    "grey": "a black and white photo of a {}.|a black and white photo of the {}.|"
    "a grey photo of a {}.|a monochrome photo of a {}.",
    "blurry": "a blurry photo of a {}.|a blurry photo of the {}.|a photo of a {} out of focus.|a soft photo of a {}.",
    "dark": "a dark photo of a {}.|a dark photo of the {}.|a photo of a {} at night.|a photo of a {} in the shadow.",
    "bright": "a bright photo of a {}.|a bright photo of the {}.|a photo of a {} in bright light.",
    "pale": "a low contrast photo of a {}.|a pale photo of a {}.|a faded photo of the {}.|a photo of a {} in the fog.",
    "small": "a photo of a small {}.|a photo of the small {}.|a photo of a {} far away.|a tiny {}.",
    "upside down": "an upside down photo of a {}.|a photo of a {} upside down.|a {} on its head.",
    "tilted": "a tilted photo of a {}.|a photo of a tilted {}.|a rotated photo of the {}.",
    "pixelated": "a pixelated photo of a {}.|a pixelated photo of the {}.|"
    "a low resolution photo of a {}.|a low resolution photo of the {}.",
    "noisy": "a noisy photo of a {}.|a grainy photo of the {}.|a photo of a {} with noise.",
    "corrupted": "a jpeg corrupted photo of a {}.|a jpeg corrupted photo of the {}.|"
    "a bad photo of a {}.|a bad photo of the {}.",
    "negative": "a negative of a {}.|a photo of a {} in inverted colors.|a negative photo of the {}.",
    "sketch": "a sketch of a {}.|a sketch of the {}.|a drawing of a {}.|a drawing of the {}.|a pencil drawing of a {}.",
    "painting": "a painting of a {}.|a painting of the {}.|a watercolor of a {}.|art of a {}.",
    "colorful": "a colorful photo of a {}.|a photo of a {} in vivid colors.|a poster of a {}.",
    "several": "a photo of many {}.|a photo of several {}.|a group of {}.",
}
